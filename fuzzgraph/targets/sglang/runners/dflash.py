"""DFLASH's draft runner: a whole block is drafted by one forward, targets `sglang-dflash-draft-*`.

The worker's own code lays the block out, hands its draft model lengths and slots, and samples
behind it; the draft model runs on graphs of `DecodeCudaGraphRunner`, one for each batch size, with
a row of `draft_tokens` tokens for each request. Behind the first token of a block stand masks, and
every token sees the whole block, or the part before it. The layer is the engine's own
`RadixAttention`; what stands in for projections, norms and the head is `fuzzgraph.draft_head`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import next_token
from fuzzgraph.draft_head import next_hidden
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.demands import demand_rows
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import (
    FORWARD,
    AttentionModel,
    demand_forward,
    in_forward_context,
)
from fuzzgraph.targets.sglang.backends import fa3, flashinfer, triton, trtllm_mha
from fuzzgraph.targets.sglang.backends.attention_backend import (
    AttentionBackend,
    BackendSession,
    BackendTarget,
    attributes,
)
from fuzzgraph.targets.sglang.excuses.blocks import BLOCK_EXCUSES
from fuzzgraph.targets.sglang.release import demand_release, engine_module
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.stubs.block_worker import BlockWorker
from fuzzgraph.targets.sglang.stubs.dflash_worker import WORKER, DFlashWorker
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, request_pool
from fuzzgraph.world import Batch

_PAST_LENS, _ALL_LENS = "drafted_past", "drafted_lens"
"""Truths of lengths, without and with the block: those of requests where there is no window."""
_OF_THE_MAP = ("kv_indices", "page_table")
"""Fields that list keys of the page map, which has another order where a window cuts it."""
_PAST = "sglang triton_backend.py: the block's own keys are handed over beside those of the past"


def _triton_lists(backend: Any, size: int | None) -> Any:
    """Where kernels find the keys of the past: in buffers that graphs of all sizes share."""
    if size is None:
        return backend.forward_metadata
    rows = backend.kv_indptr[: size + 1]
    return Stub(kv_indptr=rows, kv_indices=backend.cuda_graph_kv_indices)


_TRITON = replace(
    triton.TRITON,
    # What stands in there is no kernel: its own run.
    kernels=triton.TRITON.stubs,
    stubs=(),
    fields=("kv_indptr", "kv_indices"),
    held=_triton_lists,
    read=attributes(kv_indptr="kv_indptr", kv_indices="kv_indices"),
    own_fields=lambda config: (
        fields.offsets("kv_indptr", repeats="cached_lens", source=_PAST),
        fields.slot_indices("kv_indices", rewritten=True, source=_PAST),
    ),
)
BACKENDS = {
    "fa3": fa3.FA3,
    "fa4": fa3.FA4,
    "flashinfer": flashinfer.FLASHINFER,
    "triton": _TRITON,
    "trtllm-mha": trtllm_mha.TRTLLM_MHA,
}
FROM = (0, 5, 16)
_LOGITS = "sglang.srt.layers.logits_processor"
_RADIX = "sglang.srt.layers.radix_attention"
_BOUND = (
    "sglang dflash_worker_v2.py: where no backend asks for lengths on the host, they are what the "
    "scheduler has reserved, a bound from above"
)
_MIRROR = "sglang dflash_worker_v2.py: on the host lengths have the block beside the past"


def lengths_on_host(backend: Any, config: EngineConfig) -> bool:
    """Whether the scheduler knows lengths on the host: a backend asks for them, this one or the one
    of the worker's other model."""
    return bool(getattr(backend, "needs_cpu_seq_lens", True)) or config.cpu_seq_lens


def host_lengths(field: Field, exact: bool, fill: int) -> Field:
    """Lengths on the host as the worker hands them on: with the block, or a bound of them.

    Args:
        fill: of padded rows.
    """
    if exact:
        return replace(field, repeats="widened_lens", source=_MIRROR)
    padding = PaddingRule("fill", fill)
    return Field(field.name, "requests", "length", padding, source=_BOUND, unjudged=_BOUND)


class BlockModel(AttentionModel):
    """A draft model of one layer, whose hidden states are all that a worker samples from."""

    def __init__(self, config: EngineConfig, device: torch.device, rope: Any = "apart") -> None:
        super().__init__(config, device, rope)
        self._columns = config.num_q_heads * config.v_head_dim
        if config.drafted_blocks == "whole":
            self.layer.attn_type = engine_module(_RADIX).AttentionType.ENCODER_ONLY

    def modules(self) -> tuple[Any, ...]:  # type: ignore[override]
        """TensorRT-LLM's backend asks the layers of a model which keys they see."""
        return (self.layer,)

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
        **_: Any,
    ) -> Any:
        """Hidden states of all tokens, as the engine's DFlashDraftModel gives them."""
        demand_forward(input_ids, positions, forward_batch)
        given = demand_rows(input_embeds, len(input_ids), "input_embeds", FORWARD)
        attended = self.attend(input_ids, positions, forward_batch)
        rows = demand_rows(attended, len(input_ids), "attention", FORWARD)
        hidden = next_hidden(rows, given, next_token(input_ids, positions, 0))
        kind = engine_module(_LOGITS).LogitsProcessorOutput
        return kind(next_token_logits=None, hidden_states=hidden)


class BlockDraftTarget(BackendTarget):
    """DFLASH's draft runner on one backend of the sglang release that this process holds."""

    excuses = BLOCK_EXCUSES
    algorithm = "DFLASH"
    worker = WORKER
    """The module that has it."""

    def __init__(self, name: str, backend: str) -> None:
        super().__init__(name, BACKENDS[backend], "target_verify")
        self.about = f"{self.backend.name}, blocks that {self.algorithm} drafts by one forward"
        self.also_stood_in_for = (*self.backend.stood_in_for, "the draft model behind attention")
        # What layers behind attention make of rounded weights is not worked out.
        self.fp8_weights = None
        self.capabilities = self.capabilities.replace(
            modes=("target_verify",),
            plan_streams=True,
            drafted_blocks=("whole", "causal"),
            drafted_windows=True,
            samplings=("greedy", "target"),
            cpu_seq_lens=True,
            max_draft_tokens=8,
            max_spec_topk=1,
            max_spec_steps=1,
            max_tp_size=1,
            max_dp_size=1,
            two_batch_overlap=False,
            backends_beside=("none",),
            trtllm_kernels=("trtllm_gen",),
            logit_caps=(0,),
            row_mixings=("none",),
            swa_window=False,
            virtual_pages=False,
            capture_beyond_pool=False,
        )

    def refused(self, config: EngineConfig) -> str | None:
        if config.drafted_blocks == "none":
            return "the rows of a draft runner are blocks: drafted_blocks must say of which kind"
        return super().refused(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BlockDraftSession:
        return BlockDraftSession(config, graphs, self.backend)

    def modules(self) -> tuple[str, ...]:
        demand_release(FROM, "folds no sampler into graphs of drafted blocks", self.name)
        return (*super().modules(), self.worker)


class BlockDraftSession(BackendSession):
    """The worker, its draft runner, and the backend on which the draft model attends."""

    draft_worker = True
    pads_for_ranks = False
    algorithm = "DFLASH"
    worker: type[BlockWorker] = DFlashWorker
    model: type[BlockModel] = BlockModel
    _requests: Any
    """The target's request pool, whose page map the harness writes."""
    _worker: BlockWorker

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: AttentionBackend) -> None:
        arguments = (("speculative_algorithm", self.algorithm), *kind.arguments)
        super().__init__(config, graphs, replace(kind, model=self.model, arguments=arguments))
        self.fields = tuple(self._as_drafted(field) for field in self.fields)
        if config.drafted_window:
            self.fields = tuple(field for field in self.fields if field.name not in _OF_THE_MAP)
        self.pools = replace(self.pools, req_to_token=self._requests.req_to_token)

    def _as_drafted(self, field: Field) -> Field:
        """Lengths are those that the block sees, as the worker's own code says them."""
        if field.name == "seq_lens_cpu":
            return self._on_host(field)
        seen = {"cached_lens": _PAST_LENS, "seq_lens": _ALL_LENS}.get(field.repeats)
        return replace(field, repeats=seen) if seen else field

    def _on_host(self, field: Field) -> Field:
        exact = self._mirrored and not self._config.drafted_window
        return host_lengths(field, exact, self._kind.fill(self._config))

    @property
    def _mirrored(self) -> bool:
        return lengths_on_host(self.backend, self._config)

    def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
        runner, config = self._model_runner, self._config
        described = runner.model_config
        self._requests = runner.req_to_token_pool
        if config.drafted_window:
            columns = self._requests.req_to_token.shape[1]
            self._requests = request_pool(config, torch.device(runner.device), columns=columns)
        self._worker = self._open_worker(runner)
        described.hidden_size = described.spec_hidden_size = self._worker.embedding.shape[1]
        with self._drafting():
            self._folded = self._worker.fold_sampler()
            if self._folded:
                runner.capture_tail_hooks = [self._worker.capture_hook()]
            driver = super()._open_runner(graphs)
        return _within(self._drafting, driver)

    def _drafting(self) -> contextlib.AbstractContextManager[Any]:
        """Around what the worker has its draft model's runner do."""
        return contextlib.nullcontext()

    def _open_worker(self, runner: ModelRunner) -> BlockWorker:
        return self.worker(runner, self._config, self._requests, mirrored=self._mirrored)

    def _translate(self, batch: Batch) -> Any:
        self._batch = batch
        self._worker.take_graphs(None if self.ran_eagerly else self.runner._engine)
        given = self._worker.drafted_batch(batch)
        self._worker.take_graphs(None)
        return given

    @property
    def roots(self) -> dict[str, object]:
        own = {"worker": vars(self._worker.engine), "target_req_to_token_pool": self._requests}
        return {**super().roots, **own}

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        found = super()._used(lens)
        left_out = _OF_THE_MAP if self._config.drafted_window else ()
        return {name: tensor for name, tensor in found.items() if name not in left_out}

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        return (*super().promised_outputs(mode), "block_hidden", self.drafts)

    @property
    def drafts(self) -> str:
        """The output that its drafts are."""
        return "block_tokens"

    def _forward_eagerly(self) -> None:
        """As the engine's eager runner calls a draft model."""
        given = self._last_batch
        assert self._attention is not None
        with self._drafting():
            self._prepare_eagerly()
            with in_forward_context(self.backend, given):
                self._outputs = self._attention.forward(
                    given.input_ids, given.positions, given, input_embeds=given.input_embeds
                )

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        hidden = self._outputs.hidden_states
        rows = self._last_batch.batch_size
        live = hidden[: rows * self.runner.width]
        in_graph = self._folded and not self.ran_eagerly
        sampled = self._worker.drafts(self._batch, live, in_graph=in_graph)
        heads = (self._config.num_q_heads, self._config.v_head_dim)
        attended = hidden[:, : heads[0] * heads[1]].unflatten(1, heads)
        return {
            "attention": attended.clone(),
            "block_hidden": live.clone(),
            self.drafts: sampled.clone(),
        }


def _within(
    scope: Callable[[], contextlib.AbstractContextManager[Any]], driver: RunnerDriver
) -> RunnerDriver:
    """The driver, whose calls of the engine run within `scope()`."""
    for name in ("capture", "can_run", "prepare", "replay", "handed_out"):
        setattr(driver, name, _entering(scope, getattr(driver, name)))
    return driver


def _entering(
    scope: Callable[[], contextlib.AbstractContextManager[Any]], call: Callable[..., Any]
) -> Callable[..., Any]:
    def entered(*given: Any) -> Any:
        with scope():
            return call(*given)

    return entered
