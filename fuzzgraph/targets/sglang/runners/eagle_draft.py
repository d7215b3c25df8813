"""The graph runners of EAGLE's draft worker: EAGLEDraftCudaGraphRunner and its kin.

`sglang-eagle-draft` grows drafts, `sglang-eagle-draft-extend` catches up with what was accepted,
and `sglang-frozen-kv-mtp` drafts on the target's KV. The release's own runner pads and fills its
inputs. EAGLE's draft-extend and its drafts of one branch run one layer on FlashAttention 3;
elsewhere the backend only records. Hidden states, logits and drafted tokens are the draft model's
own, but for drafts of several branches.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig, Mode
from fuzzgraph.errors import AdapterUnavailable, NotInRelease
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.attention_model import (
    ROW_MIXINGS,
    as_logits,
    in_forward_context,
    outputs_in,
)
from fuzzgraph.targets.sglang.backends.attention_backend import open_backend
from fuzzgraph.targets.sglang.backends.fa3 import FA3, FA3_DRAFT
from fuzzgraph.targets.sglang.backends.recording import recording_backend, watched
from fuzzgraph.targets.sglang.decode_session import (
    BY_TOKEN,
    DATA_RANKS,
    WIDE_BATCH,
    DecodeSession,
)
from fuzzgraph.targets.sglang.draft_model import DraftModel, UnattendedModel
from fuzzgraph.targets.sglang.excuses.drafts import DRAFT_EXCUSES
from fuzzgraph.targets.sglang.expert_exchange import ADAPTED_FROM, DEEPEP, DIRTY, LOW_LATENCY
from fuzzgraph.targets.sglang.forward_batch.data_ranks import forget_ranks
from fuzzgraph.targets.sglang.forward_batch.draft import (
    draft_batch,
    extend_batch,
    live_places,
    select_index,
)
from fuzzgraph.targets.sglang.release import has_module, is_before, release
from fuzzgraph.targets.sglang.runners.draft_cuda_graph_runners import (
    DRAFT,
    DRAFT_EXTEND,
    FROZEN,
    DraftRunnerDriver,
    RunnerKind,
)
from fuzzgraph.targets.sglang.runners.draft_fields import COUNTED, draft_fields, draft_inputs
from fuzzgraph.targets.sglang.runners.draft_outputs import (
    CHAIN,
    TREE,
    chain_in,
    drafted_in,
    drafted_names,
    sampled_from,
    sampled_from_nothing,
    tree_in,
)
from fuzzgraph.targets.sglang.runners.eagle_multi_layer import MULTI_LAYER
from fuzzgraph.targets.sglang.runners.extend_beside_ranks import Extended, extend_beside_ranks
from fuzzgraph.targets.sglang.stubs.draft_worker import (
    draft_worker,
    packs_accepted_tokens,
    runs_draft_loop,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.platform import cuda_server
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.world import Batch

# sglang EAGLEDraftExtendCudaGraphRunner.__init__: `out_cache_loc = torch.ones(...)`. It captures
# when the server starts, before the pool holds anything.
_CAPTURED_ON = (1,)

_ATTENDED = {DRAFT: "one branch", DRAFT_EXTEND: "", MULTI_LAYER: ""}
"""Kind of runner whose model attends -> in which cases; '' for all."""

_KERNELS = "attention kernels, by models"
_NO_ATTENTION = ("the attention backend", "attention of the draft model")
_LOOP = "up to 0.5.12 the worker's loop over steps, which drafts one position too far (PR 25015)"
_STOOD_IN_FOR = {
    DRAFT: (_KERNELS, _LOOP, f"with several branches {' and '.join(_NO_ATTENTION)}"),
    DRAFT_EXTEND: (_KERNELS,),
}

_WINDOWS = (0, 5, 21)
"""The first release whose drafts have slots of a sliding window."""

_TRACKS = (0, 5, 22)
"""The first release whose draft-extends are told where the model that they draft for keeps states
for its prefix cache."""

_NO_GRAPH = "sglang draft-extend runner, can_run: a rank has more rows than the largest graph"
"""Of steps that are padded behind their metadata, whose sizes are those of the batch alone."""

_NO_DRAFTS = "eagle_worker_v2.py captures no drafts with --speculative-num-steps 1"
"""Of a server whose model runs at no step of a draft: its first token is what an extend gave."""

_KINDS = (DRAFT, DRAFT_EXTEND, FROZEN, MULTI_LAYER)


def _attends(config: EngineConfig) -> bool:
    """Whether a draft's steps do: several branches whose keys lie apart attend in two parts, of
    which the second takes its slots as a server with one step more lays them out."""
    return config.spec_topk == 1 or config.draft_branches == "chosen"


class DraftTarget(SglangTarget):
    """One kind of draft runner of the sglang release that this process holds."""

    excuses = DRAFT_EXCUSES

    def __init__(self, name: str, kind: str) -> None:
        self.name = name
        self._kind = next(one for one in _KINDS if one.name == kind)
        self.about = f"inputs of {self._kind.runner}"
        computes = self._kind in _ATTENDED
        ranks, idle = (DATA_RANKS, ("idle",)) if computes else ({}, ())
        self.outputs_judged = {self._kind.mode: _ATTENDED.get(self._kind, "")}
        self.also_stood_in_for = _STOOD_IN_FOR.get(self._kind, _NO_ATTENTION)
        self.capabilities = Capabilities(
            modes=(self._kind.mode, *idle),
            **ranks,
            max_batch=16,
            max_wide_batch=WIDE_BATCH,
            max_context_len=LONGEST_CONTEXT,
            # FlashAttention's backend asks for 1.
            seq_len_fill_values=(1,) if computes else (1, 0),
            # What draft-extend computes for tokens that were not accepted lies beyond the case.
            row_mixings=ROW_MIXINGS if self._kind is DRAFT else ("none",),
            max_spec_steps=3,
            max_spec_topk=self._kind.max_topk,
            max_draft_tokens=4,
            capture_beyond_pool=True,
            state_tracking=self._kind in (DRAFT_EXTEND, MULTI_LAYER),
            swa_window=computes,
            draft_branches=("apart",),
            prefix_by_group=False,
        )

    def refused(self, config: EngineConfig) -> str | None:
        if config.spec_topk > self._kind.max_topk:
            return f"spec_topk={config.spec_topk} is not driven, only {self._kind.max_topk}"
        if self._kind is DRAFT and config.swa_window and config.spec_topk > 1:
            return f"swa_window={config.swa_window} with several branches, which do not attend"
        if self._kind is DRAFT and config.spec_steps == 1 and not _attends(config):
            return f"spec_topk={config.spec_topk} with spec_steps=1: {_NO_DRAFTS}"
        return None

    def unserved(self, config: EngineConfig) -> str | None:
        chain, interval = config.spec_steps + 1, config.state_track_interval
        if 0 < interval < config.draft_tokens:
            least = f"{config.draft_tokens} drafts"
            return f"server_args.py refuses mamba_track_interval={interval} below {least}"
        if self._kind is not DRAFT or config.spec_topk > 1 or config.draft_tokens == chain:
            return None
        steps, drafts = f"spec_steps={config.spec_steps}", f"draft_tokens={config.draft_tokens}"
        return f"server_args.py changes {drafts} to {chain} with spec_topk=1 and {steps}"

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DraftSession:
        return DraftSession(config, graphs, self._kind)

    def modules(self) -> tuple[str, ...]:
        if not has_module(self._kind.module):
            raise AdapterUnavailable(
                f"sglang {release()} has no {self._kind.runner}, which target {self.name!r} "
                "drives. Name a release that has it: fuzzgraph targets lists them."
            )
        return (self._kind.module,)


class DraftSession(DecodeSession):
    """One draft runner; its backend takes down what it is handed, and some compute."""

    runner: DraftRunnerDriver
    attends_on = FA3
    """The backend of those that compute."""
    compared_at_capture = (COUNTED, LOW_LATENCY, DIRTY)
    least_accepted = 0
    """Accepted tokens that a row of a draft-extend is said to have at least."""

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: RunnerKind) -> None:
        if kind is DRAFT and config.swa_window and is_before(_WINDOWS):
            raise NotInRelease(
                f"swa_window={config.swa_window} is not driven: sglang {release()} hands each step "
                "of a draft the window's slots of all steps (flashattention_backend.py, "
                "_init_full_cg_decode_metadata), which its buffer cannot hold"
            )
        if config.state_track_interval and is_before(_TRACKS):
            raise NotInRelease(
                f"sglang {release()} does not tell draft models where states are kept: "
                "state_track_interval must be 0"
            )
        if config.draft_branches == "chosen" and not runs_draft_loop():
            raise NotInRelease("branches of drafts are chosen from sglang 0.5.13 on")
        self._kind = kind
        self._batch: Batch | None = None
        self._packed = packs_accepted_tokens() and kind is DRAFT_EXTEND
        self._extends = kind in (DRAFT_EXTEND, MULTI_LAYER)
        self.pads_for_ranks = kind is DRAFT_EXTEND and not self._packed
        self._beside_ranks: Extended | None = None
        tracks = config.state_track_interval > 0
        self.inputs = draft_inputs(kind, ranks=config.dp_size > 1, tracks=tracks)
        self.fields = draft_fields(config, self._fill(config), self._extends, self._packed)
        self._captured: dict[Hashable, tuple[torch.Tensor, ...]] = {}
        self._model: DraftModel | None = None
        if self._computes(config):
            kind_of_model = self.attends_on.draft_model
            self._model = kind_of_model(config, graphs.device, self.attends_on.rope)
        self._loops = self._model is not None and kind is DRAFT and runs_draft_loop()
        self._bare = UnattendedModel(config, graphs.device) if kind is FROZEN else None
        backend = "triton" if self._model is None else self.attends_on.name
        super().__init__(
            config,
            graphs,
            backend=backend,
            drafts=True,
            model=self._model or self._bare,
            arguments={**self._server_arguments(config), **self._exchange_arguments(config)},
        )
        self.inputs = [name for name in self.inputs if hasattr(self.runner.buffers, name)]
        if self._model is not None and self._extends:
            self.pools = replace(self.pools, capture_slots=_CAPTURED_ON)
        self._filled: dict[str, torch.Tensor] = {}
        self.backend.on_metadata = self._copy_inputs

    def _fill(self, config: EngineConfig) -> int:
        """Length of padded rows, which the backend asks for."""
        return config.seq_len_fill_value

    def _server_arguments(self, config: EngineConfig) -> dict[str, Any]:
        """Of a server whose drafts run the model at each step of the case.

        EAGLE's draft of n tokens runs it n - 1 times, because the last token needs no forward; so
        did drafts on the target's KV up to 0.5.12, which have a forward more since. Without
        branches a row to verify holds one token more than its draft.
        """
        if config.draft_branches == "chosen":
            tokens = config.draft_tokens
            return {
                "speculative_num_steps": config.spec_steps + 1,
                "speculative_num_draft_tokens": tokens,
            }
        if self._loops or (self._kind is FROZEN and not runs_draft_loop()):
            steps = config.spec_steps + 1
        elif self._kind is FROZEN:
            steps = config.spec_steps
        else:
            return {}
        return {"speculative_num_steps": steps, "speculative_num_draft_tokens": steps + 1}

    def _exchange_arguments(self, config: EngineConfig) -> Mapping[str, Any]:
        """Of how experts exchange tokens: with DeepEP beside data-parallel ranks."""
        return DEEPEP if config.dp_size > 1 and not is_before(ADAPTED_FROM) else {}

    def _computes(self, config: EngineConfig) -> bool:
        """Whether the draft model attends."""
        return self._kind in _ATTENDED and _attends(config)

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        """With the slots that the worker has put behind the past of each row."""
        if self._model is None:
            yield
            return
        with cuda_server(), contextlib.nullcontext() if batch is None else self._drafted(batch):
            yield

    @contextlib.contextmanager
    def _drafted(self, batch: Batch) -> Iterator[None]:
        """Those of drafts; or the reserved one, where what was not accepted is written."""
        table = self._model_runner.req_to_token_pool.req_to_token
        place = {"dtype": table.dtype, "device": table.device}
        rows = torch.tensor(batch.req_pool_indices)[:, None]
        if self._extends:
            slots = torch.zeros(batch.raw_bs, self._config.draft_tokens, **place)
        else:
            slots = torch.tensor(batch.slot_mapping, **place).view(-1, self._config.spec_steps)
            if self._config.draft_branches == "chosen":  # each branch has its server's steps
                slots = torch.nn.functional.pad(slots, (0, 1))
            slots = slots.view(batch.raw_bs, self._config.spec_topk * slots.shape[1])
        columns = torch.tensor(batch.seq_lens)[:, None] + torch.arange(slots.shape[1])
        before = table[rows, columns]
        table[rows, columns] = slots
        try:
            yield
        finally:
            table[rows, columns] = before

    def _open_backend(self, runner: ModelRunner) -> Any:
        if self._model is None:
            return recording_backend(self._config.seq_len_fill_value)
        if self._extends:
            return open_backend(self.attends_on, runner, watched)
        # A draft of n steps has n - 1 backends, because the last token needs no forward. Here each
        # step attends, as in a server with one step more.
        steps = self._config.spec_steps + 1
        return open_backend(FA3_DRAFT, runner, watched, topk=1, speculative_num_steps=steps)

    def remember(self, key: Hashable) -> None:
        super().remember(key)
        if self._model is not None or self._bare is not None:
            self._captured[key] = self._computed()

    def observe(self, batch: Batch) -> Observation:
        """Outputs of accepted tokens: the engine drops what else its graph computed.

        Packed, the places behind the last row belong to no row, and nothing is written there; not
        packed, what was not accepted sees keys beyond what the case knows of a request.
        """
        seen = super().observe(batch)
        if self._model is not None or self._bare is not None:
            seen.shown_tokens = batch.num_tokens
        if self._extends and not self._packed:
            seen.row_width = self.runner.width
        return seen

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        """Attention, what mixes its rows, and what the engine drafts on."""
        if mode == "idle":
            return ()
        more: tuple[str, ...] = ()
        if self._kind is FROZEN:
            return "unattended_hidden", *drafted_names(_given())
        if self._loops:
            branched = self._config.draft_branches == "chosen"
            more = ("hidden_states", *(TREE if branched else CHAIN))
        elif self._model is not None and self._kind is DRAFT_EXTEND:
            more = ("hidden_states", "next_token_logits")
        return *super().promised_outputs(mode), *more

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        if self._batch is None or self._batch.mode == "idle":
            return {}
        if self._bare is not None:
            return self._frozen_drafts(self._batch)
        if self._model is None:
            return {}
        attended, *hidden = self._computed() if self.ran_eagerly else self._captured[self._size]
        if self._extends and not self._packed:
            attended = self._live_first(attended)
        steps = self._config.spec_steps if self._kind is DRAFT else 1
        live = self._batch.num_tokens * steps
        found = outputs_in(as_logits(attended[:live]), self._config)
        if self._loops:
            found |= {
                "hidden_states": hidden[0][:live].clone(),
                **(chain_in if self._config.spec_topk == 1 else tree_in)(
                    self._outputs, self._batch
                ),
            }
        elif self._kind is DRAFT_EXTEND:
            found |= self._sampled(self._batch)
        return found

    def _computed(self) -> tuple[torch.Tensor, ...]:
        """Tensors that the model computed last: a graph rewrites its own."""
        model = self._model or self._bare
        assert model is not None
        stood_in_for = self._kind is DRAFT and not self._loops
        return (model.attended,) if stood_in_for else (model.attended, model.hidden)

    def _frozen_drafts(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What a model without a layer computed, and what its runner handed out."""
        _, hidden = self._computed() if self.ran_eagerly else self._captured[self._size]
        live = batch.num_tokens * self._config.spec_steps
        drafted = drafted_in(self._outputs, batch, _given())
        return {"unattended_hidden": hidden[:live].clone(), **drafted}

    def _sampled(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What a runner of draft-extend handed out to sample from."""
        if self.ran_eagerly and not (batch.num_tokens if self._packed else batch.raw_bs):
            assert self._model is not None
            return sampled_from_nothing(self._model.hidden)
        picked = self._packed or (_wants_select_index(self.runner) and not self.ran_eagerly)
        return sampled_from(self._outputs, batch, self.runner.width, picked=picked)

    def replay(self, batch: Batch) -> None:
        with self.engine_runs(batch):
            super().replay(batch)

    @property
    def _padded_eagerly(self) -> bool:
        """Whether the last run was padded without a graph."""
        return self._beside_ranks is not None

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        if self.ran_eagerly and self._beside_ranks is not None:
            return self._beside_ranks.rows, self._beside_ranks.tokens
        return super().padded_size(batch)

    def declined(self, batch: Batch) -> str:
        if self._beside_ranks is not None and batch.largest_rank > self._config.capture_bs[-1]:
            return _NO_GRAPH
        return super().declined(batch)

    def _forward_eagerly(self) -> None:
        given = self._last_batch
        assert self._batch is not None
        self._beside_ranks = None
        if self.pads_for_ranks and self._config.dp_size > 1 and self._takes_no_graph(self._batch):
            self._beside_ranks = extend_beside_ranks(
                given, self._model_runner, self.backend, self._model
            )
            self._outputs = self._beside_ranks.outputs
            return
        if self._config.dp_size > 1:
            forget_ranks(given)
            if not given.batch_size:
                return
        if self._kind is FROZEN:  # the loop prepares for itself
            self._outputs = self.worker.draft_forward(given)
            return
        self._prepare_eagerly()
        if self._model is None:
            return
        elif self._loops:
            self._outputs = self.worker.draft_forward(given)
        elif self._kind is DRAFT:
            first = given.spec_info.topk_index.flatten()
            self._model.attend_drafts(first, given, self.backend.attn_backends)
        else:
            with in_forward_context(self.backend, given):
                self._outputs = self._model.forward(given.input_ids, given.positions, given)

    def _open_runner(self, graphs: GraphEngine) -> DraftRunnerDriver:
        worker = draft_worker(self._model_runner, self.backend, self._config, kind=self._kind.name)
        self.worker = worker
        return DraftRunnerDriver(self._kind, worker, self._config, graphs, self.remember)

    def _translate(self, batch: Batch) -> Any:
        self._batch = batch
        runner = self._model_runner
        if not self._extends:
            return draft_batch(batch, runner, self._config, frozen=self._kind is FROZEN)
        return extend_batch(
            batch, runner, self.runner.width, packed=self._packed, least=self.least_accepted
        )

    def prepare_replay(self, batch: Batch) -> None:
        self._beside_ranks = None
        super().prepare_replay(batch)
        if self.ran_eagerly:
            return
        if self._extends and _wants_select_index(self.runner):
            places = select_index(batch, self.runner.width).to(self._model_runner.device)
            self.runner.prepare(self._last_batch, places)

    def live_tokens(self, batch: Batch) -> int:
        return len(batch.slot_mapping) if self._kind is DRAFT else batch.num_tokens

    def _padded_tokens(self, padded_bs: int) -> int:
        per_token = self._config.spec_steps if self._kind is DRAFT else 1
        return padded_bs * self.runner.width * per_token

    def _copy_inputs(self) -> None:
        """As a replay starts from them: drafts move their positions on, up to 0.5.11 for good."""
        self._filled = {name: getattr(self.runner.buffers, name).clone() for name in self.inputs}

    def _input(self, name: str, padded_bs: int) -> torch.Tensor:
        """Where rows have all their places, live tokens come first, as the batch has them."""
        covered = self._padded_tokens(padded_bs) if name in BY_TOKEN else padded_bs
        if name == "positions":  # one for each branch; its steps count on from there
            covered = padded_bs * self.runner.width
        if name == COUNTED:
            return self._filled[name]
        found = self._filled[name][:covered]
        if name == "out_cache_loc" and self._loops:  # without those of tokens that have no forward
            steps = self._config.spec_steps
            every = self._filled[name].view(-1, steps + 1)
            found = every[: padded_bs * self.runner.width, :steps].reshape(-1)
        if name not in BY_TOKEN or not self._extends or self._packed or self._batch is None:
            return found
        return self._live_first(found)

    def _live_first(self, found: torch.Tensor) -> torch.Tensor:
        """[places, ...] with those of live tokens in front."""
        assert self._batch is not None
        live = torch.tensor(live_places(self._batch, self.runner.width))
        rest = torch.ones(len(found), dtype=torch.bool)
        rest[live] = False
        return torch.cat((found[live], found[rest]))

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if not self.ran_eagerly or self._beside_ranks is None:
            return super().used_metadata(batch, buffers)
        given = self._beside_ranks.given
        by_token = {name: self._live_first(given[name]) for name in given if name in BY_TOKEN}
        return given | by_token

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """What the backend was handed; it must be what the buffers hold.

        Runners of draft-extend hand over whole buffers, and `bs`, by which backends cut them.
        Source: sglang EAGLEDraftExtendCudaGraphRunner.replay, req_pool_indices=buffers.req_...
        """
        handed: dict[str, torch.Tensor] = self.backend.handed_tensors()
        if not self._extends or self.ran_eagerly:
            return handed
        rows = {name for name in handed if name != "seq_lens_sum"}
        return handed | {name: handed[name][: len(lens)] for name in rows}


def _given() -> int:
    """Tokens of a row that a draft on the target's KV does not predict: one up to 0.5.12."""
    return 0 if runs_draft_loop() else 1


def _wants_select_index(runner: Any) -> bool:
    return hasattr(runner.buffers, "select_index")
