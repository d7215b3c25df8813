"""The draft worker of a server with speculation, as far as its graph runners look at it.

The real one loads a draft model. Here the model is one of a single layer, or computes nothing: then
its forward returns tensors of the right shape, and a draft returns tokens that follow from what the
graph was given, so that a wrong input shows in an output. Where there is a layer, drafts run
the worker's own loop.
"""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import hidden_width
from fuzzgraph.draft_head import LOGITS
from fuzzgraph.errors import NotInRelease
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import demand_forward
from fuzzgraph.targets.sglang.draft_model import DraftHead, DraftModel, no_draft
from fuzzgraph.targets.sglang.release import engine_module, has_module, is_before, release
from fuzzgraph.targets.sglang.runners import decode_cuda_graph_runner
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

_FIRST_WORKER = "sglang.srt.speculative.eagle_worker"
_WORKER = "sglang.srt.speculative.eagle_worker_v2"
_FROZEN_WORKERS = (
    "sglang.srt.speculative.frozen_kv_mtp_worker",
    "sglang.srt.speculative.frozen_kv_mtp_worker_v2",
)
_HELPERS = "sglang.srt.speculative.spec_utils"
_COMPILED = ("select_top_k_tokens", "_select_top_k_tokens_later")
"""Functions of a draft's loop that releases hand to torch's compiler."""


def packs_accepted_tokens() -> bool:
    """Whether draft-extend gets the accepted tokens only, row after row.

    Up to 0.5.12 it does; since then every row has the whole width, and what was not accepted is
    computed and dropped.
    """
    return has_module(_FIRST_WORKER)


def _forward(input_ids: Any, positions: Any, forward_batch: Any, *_: Any, **__: Any) -> Any:
    """A draft model's forward that computes nothing."""
    demand_forward(input_ids, positions, forward_batch)
    return no_draft(forward_batch)


def runs_draft_loop() -> bool:
    """Whether EAGLE's drafts with attention run the engine's own loop over their steps.

    Up to 0.5.12 the loop moves positions on before a step instead of after it, so that every draft
    is computed a position too far; what stands in for it there takes the place of its first token.
    """
    return not packs_accepted_tokens()


def _engine_draft(worker: Any, model: DraftHead, *, eagle: bool) -> Any:
    """The worker's own `draft_forward`, without a server behind it.

    Its helper functions are not compiled: torch's compiler is the device's side.

    Args:
        eagle: whether it is EAGLE's, and not that of drafts on the target's KV.
    """
    module = engine_module(_WORKER if eagle else _frozen_worker())
    helpers = engine_module(_HELPERS)
    uncompiled = {
        name: getattr(function, "__wrapped__", function)
        for name, function in vars(helpers).items()
        if name in _COMPILED
    }
    if eagle:
        engine = module.EagleDraftWorker
        if worker.topk == 1:
            engine._rebuild_topk1_chain_buffers(worker)
    else:
        engine = getattr(module, "FrozenKVMTPDraftWorker", None) or module.FrozenKVMTPWorker

    def draft(forward_batch: Any, **named: Any) -> Any:
        with replaced_names((module, helpers), uncompiled):
            return model.draft(lambda: engine.draft_forward(worker, forward_batch, **named))

    # What the loop asks of its own class.
    worker._set_positions = lambda batch: engine._set_positions(worker, batch)
    return draft


def _frozen_worker() -> str:
    """Where it lies in this release."""
    return next(filter(has_module, _FROZEN_WORKERS))


def _stand_in_draft(runner: ModelRunner, backend: Any, config: EngineConfig, *, eagle: bool) -> Any:
    """Parents, scores and tokens of a draft; EAGLE's probabilities, which only sampling needs.

    In place of the worker's own `draft_forward`, which samples. The model attends at each step, if
    it has a layer, and its next token is the one that the reference knows.

    Args:
        eagle: whether it is EAGLE's, where positions move on by one for each step but the last.
    """
    probabilities = (None,) if eagle and has_module(decode_cuda_graph_runner.RUNNER_MODULE) else ()
    steps = config.spec_steps

    def draft(forward_batch: Any, **_: Any) -> tuple[torch.Tensor | None, ...]:
        first = forward_batch.spec_info.topk_index
        if isinstance(runner.model, DraftModel):
            runner.model.attend_drafts(first.flatten(), forward_batch, backend.attn_backends)
        if eagle:
            forward_batch.positions.add_(steps - 1)
        return first + 0, first + 1, first + 2, *probabilities

    return draft


def _forward_of(runner: ModelRunner, batch: Any) -> Any:
    """What the real runner's forward comes to once metadata is ready."""
    return runner.model.forward(batch.input_ids, batch.positions, batch)


@dataclass(frozen=True, slots=True)
class DraftLayer:
    """One layer of a draft model with several, as a model by itself."""

    runner: ModelRunner
    model: DraftModel
    backend: Any


_WINDOW_SLOTS = "translate_loc_from_full_to_swa"
_CHAINED = (0, 5, 10)
"""The first release whose draft layers may take hidden states of each other."""


def demand_chained(config: EngineConfig) -> None:
    """Return if the release has draft layers as the config says.

    Raises:
        NotInRelease: none takes the hidden states of another.
    """
    if config.chain_hidden_states and is_before(_CHAINED):
        raise NotInRelease(
            f"sglang {release()} chains no draft layers: chain_hidden_states must be false"
        )


def _hidden_states_pool(runner: ModelRunner, steps: int) -> torch.Tensor:
    """[rows, steps - 1, hidden] what a step takes for tokens before its window, up to 0.5.14."""
    rows = runner.req_to_token_pool.req_to_token.shape[0]
    width = runner.model_config.spec_hidden_size
    return torch.zeros(rows, steps - 1, width, dtype=runner.dtype, device=runner.device)


def layers_worker(layers: Sequence[DraftLayer], config: EngineConfig) -> Any:
    """A worker for the runner of several draft layers, which has a model runner for each."""
    first = layers[0]
    worker = draft_worker(first.runner, first.backend, config, kind="multi_layer")
    shared = first.runner.graph_shared_output
    for layer in layers:
        layer.model.open()
        layer.runner.model, layer.runner.attn_backend = layer.model, layer.backend
        layer.runner.graph_shared_output = shared
        layer.backend.token_to_kv_pool = layer.runner.token_to_kv_pool
        layer.backend.req_to_token_pool = layer.runner.req_to_token_pool
        # Up to 0.5.12 graphs ask a pool without a window for such slots too.
        pool = layer.runner.token_to_kv_pool
        if not hasattr(pool, _WINDOW_SLOTS):
            setattr(pool, _WINDOW_SLOTS, lambda slots: slots)
    worker.draft_runner_list = [layer.runner for layer in layers]
    worker.draft_extend_attn_backend_list = [layer.backend for layer in layers]
    worker.mtp_model_runner = lambda layer: layers[layer].runner
    worker.chain_mtp_hidden_states = config.chain_hidden_states
    worker.req_to_hidden_states_pool = _hidden_states_pool(first.runner, len(layers))
    return worker


def draft_worker(runner: ModelRunner, backend: Any, config: EngineConfig, *, kind: str) -> Any:
    """A worker for the runner of one kind: "draft", "draft_extend" or "frozen"; and what
    `layers_worker` adds to."""
    if runner.model is None:
        runner.model = Stub(forward=_forward, shared_experts_config=None)
    else:
        runner.model.open()
    # Releases differ in which of the two names a runner sizes its hidden states by.
    described = runner.model_config
    described.hidden_size = described.spec_hidden_size = hidden_width(config)
    described.vocab_size = LOGITS
    runner.forward = lambda batch, *_, **__: Stub(logits_output=_forward_of(runner, batch))
    runner.draft_attn_backend = backend
    runner.attn_tp_sequence_sharded = lambda tokens: runner.tp_size > 1
    runner.graph_shared_output = decode_cuda_graph_runner.shared_output(config, runner.device)
    steps = runner.server_args.speculative_num_steps
    backend.token_to_kv_pool = runner.token_to_kv_pool
    backend.req_to_token_pool = runner.req_to_token_pool
    worker = Stub(
        draft_attn_backend=backend,
        draft_extend_attn_backend=backend,
        draft_extend_num_front_tokens=0,
        device=runner.device,
        gpu_id=runner.gpu_id,
        use_rejection_sampling=False,
        draft_forward=_stand_in_draft(runner, backend, config, eagle=kind == "draft"),
        draft_model_runner=runner,
        draft_runner=runner,
        dsa_seed_topk_width=0,
        eagle_use_aux_hidden_state=False,
        hot_token_id=None,
        index_share_for_mtp_iteration=False,
        kv_context=Stub(target_token_to_kv_pool=runner.token_to_kv_pool),
        seed_dsa_topk_from_draft_extend=False,
        server_args=runner.server_args,
        speculative_algorithm=runner.spec_algorithm,
        speculative_num_draft_tokens=runner.server_args.speculative_num_draft_tokens,
        speculative_num_steps=steps,
        target_worker=Stub(model_runner=runner),
        topk=config.spec_topk,
        # The pool that drafts read is the target's from the start.
        _frozen_kv_target_view=lambda batch: contextlib.nullcontext(),
        _target_kv_pool_view=lambda batch: contextlib.nullcontext(),
        _init_frozen_kv_metadata=backend.init_forward_metadata,
        _recurrent_hidden_size=runner.model_config.spec_hidden_size,
        _init_frozen_kv_metadata_capture_cuda_graph=lambda batch, *_, **__: (
            backend.init_forward_metadata_out_graph(batch, in_capture=True)
        ),
        _init_frozen_kv_metadata_replay_cuda_graph=lambda batch, _bs, total, *_, **__: (
            backend.take_padded(batch, total)
        ),
    )
    eagle = kind == "draft"
    if kind == "frozen" or (eagle and isinstance(runner.model, DraftModel) and runs_draft_loop()):
        worker.draft_forward = _engine_draft(worker, runner.model, eagle=eagle)
    if packs_accepted_tokens():  # by this attribute the runners tell the first worker
        worker.model_runner = runner
    return worker
