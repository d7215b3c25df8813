"""One prefill runner with its captured graphs, judged by outputs, inputs and metadata."""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode, attention_outputs
from fuzzgraph.errors import NotInRelease
from fuzzgraph.observation import Field, Observation, PaddingRule
from fuzzgraph.ports import GraphEngine
from fuzzgraph.row_mixing import mixed_outputs
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.sglang.attention_model import (
    PrefillModel,
    in_forward_context,
    outputs_in,
)
from fuzzgraph.targets.sglang.backends.triton import triton_backend
from fuzzgraph.targets.sglang.fields import window_fields
from fuzzgraph.targets.sglang.forward_batch.gathered_tokens import load_model_runner
from fuzzgraph.targets.sglang.forward_batch.prefill import prefill_batch
from fuzzgraph.targets.sglang.image_model import with_images
from fuzzgraph.targets.sglang.judged_pools import judged_pools
from fuzzgraph.targets.sglang.release import is_before
from fuzzgraph.targets.sglang.runner_session import RunnerSession
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import (
    BREAKABLE,
    PrefillKind,
    PrefillRunnerDriver,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, model_runner
from fuzzgraph.world import Batch

_REGISTRY = "sglang cuda_graph_buffer_registry.py build_prefill_registry, before it replay_prepare"
_ZEROED = f"{_REGISTRY}: the tail is processed by the graph and reset to 0"
_LIVE = "sglang prefill runners: requests are not padded; the model gets the batch's own"
_SUMS = "sglang triton_backend.py: cumsum over the rows at every prefill; entry 0 from init"
_PREFIX = "sglang triton_backend.py: the slots that a request had cached before"
_TOO_MUCH = "sglang PrefillCudaGraphRunner.can_run_graph: at most {} times the tokens are padded"
_ONE_REQUEST = "sglang 0.5.11 BreakableCudaGraphRunner.can_run: no graph for several requests"

_OF_WINDOW = ("window_kv_indptr", "window_kv_indices", "swa_out_cache_loc")
"""What Triton's kernels read of a layer behind a window."""
_WINDOWS = 0, 5, 13
_BY_TOKEN = ("input_ids", "positions", "out_cache_loc")
_BY_REQUEST = {
    "req_pool_indices": "req_pool_indices",
    "seq_lens": "seq_lens",
    "extend_seq_lens": "new_lens",
    "extend_prefix_lens": "cached_lens",
}
"""What the forward batch says of each request, and what of the logical batch it repeats."""

COUNT = "num_token_non_padded"
_SHARE = f"sglang cuda_graph_buffer_registry.py build_prefill_registry: {COUNT} by the bucket"


_HASHES = (
    "ids in the place of images are hashes, which the engine puts below the vocabulary in place"
)
_EMBEDS = "sglang mm_utils.py prepare_mm_inputs: embeddings of the tokens and images of a batch"


def token_fields(config: EngineConfig) -> tuple[Field, ...]:
    """Static inputs of the tokens, which every kind of prefill graphs has."""
    ids = fields.per_token("input_ids", source=_ZEROED)
    always = (
        fields.per_token("positions", source=_ZEROED),
        fields.write_slots("out_cache_loc", source=_ZEROED),
    )
    if not config.image_len:
        return (ids, *always)
    zero = PaddingRule("fill", 0)
    return (
        replace(ids, unjudged=_HASHES),
        *always,
        *(
            Field(f"mrope_positions.{row}", "tokens", "nothing", zero, source=_ZEROED,
                  repeats="mrope" if row else "positions")
            for row in range(3)
        ),
        # Shown as the token whose embedding lies in each row, 0 where none does.
        Field("input_embeds", "tokens", "nothing", zero, source=_EMBEDS, repeats="input_ids"),
    )  # fmt: skip


def count_field() -> Field:
    """The count of this rank's live tokens."""
    return fields.value(COUNT, source=_SHARE)


def input_fields(config: EngineConfig) -> tuple[Field, ...]:
    """What a graph that breaks at attention is given, whatever the backend."""
    of_requests = (
        Field(name, "requests", "row" if name == "req_pool_indices" else "length",
              PaddingRule("fill", 0), source=_LIVE, repeats=repeats)
        for name, repeats in _BY_REQUEST.items()
    )  # fmt: skip
    return (
        *token_fields(config),
        *of_requests,
        count_field(),
    )


def _window_fields() -> tuple[Field, ...]:
    """What kernels of a layer behind a window read. They run at breaks, for the live tokens."""
    own = {field.name: field for field in window_fields("windowed_past")}
    return (
        replace(own["window_kv_indptr"], padding=fields.FREE),
        own["window_kv_indices"],
        replace(own["swa_out_cache_loc"], axis="scalar", padding=fields.FREE),
    )


def _fields(config: EngineConfig) -> tuple[Field, ...]:
    return (
        *input_fields(config),
        fields.offsets("qo_indptr", repeats="new_lens", padding=fields.FREE, source=_SUMS),
        fields.offsets("kv_indptr", repeats="cached_lens", padding=fields.FREE, source=_SUMS),
        fields.slot_indices("kv_indices", source=_PREFIX),
        *(_window_fields() if config.swa_window else ()),
    )


class PrefillSession(RunnerSession):
    """An opened runner on Triton attention, with one layer."""

    runner: PrefillRunnerDriver
    attention_captured = False

    def __init__(self, config: EngineConfig, graphs: GraphEngine, kind: PrefillKind) -> None:
        super().__init__()
        self._config = config
        self.fields = self.declared(config)
        self._declined = ""
        self._last_batch: Any = None
        self._handed_over = 0
        """Tokens of the batch that the graph runner is given; it cuts off what it adds itself."""
        self._outputs: Any = None
        if config.image_len and kind is BREAKABLE and is_before((0, 5, 12)):
            # Its graphs hold what surrounds the body too, and so no embeddings of images.
            raise NotInRelease("images are driven from sglang 0.5.12 on")
        if config.swa_window and is_before(_WINDOWS):
            # Before, slots behind a window are put in the pool itself.
            raise NotInRelease("prompts behind a window are driven from sglang 0.5.13 on")
        if config.dp_size > 1 and is_before(self.ranks_since):
            since = ".".join(map(str, self.ranks_since))
            raise NotInRelease(
                f"prefills of data-parallel ranks take graphs from sglang {since} on"
            )
        if max(config.attn_tp_size, config.dp_size) > 1:
            load_model_runner()
        with self.engine_runs():
            model = with_images(self.model) if config.image_len else self.model
            self._model = model(config, graphs.device)
            self._attention = self._model.model.attention
            runner = model_runner(
                config,
                graphs.device,
                backend=self.attention,
                drafts=self.drafts,
                prefill=kind.name,
                hybrid=getattr(self._attention, "described", None),
                arguments=self.arguments,
            )
            self._model_runner, runner.model = runner, self._model
            runner.attn_backend = self.backend = self._open_backend(runner)
            self.watch(self.backend, graphs)
            self._attention.use(runner.token_to_kv_pool, runner.token_to_kv_pool_allocator)
            self.runner = PrefillRunnerDriver(
                kind, runner, config, graphs, self.remember, self._model.decides_on_host
            )
        self.pools = judged_pools(runner, config)

    # What subclasses answer

    attention = "triton"
    """As `--attention-backend` spells it."""
    arguments: Mapping[str, Any] = MappingProxyType({})
    """Of the server, beyond those that follow from a config."""
    ranks_since: tuple[int, int, int] = (0, 5, 17)
    """First release whose data-parallel ranks agree on a graph (dp_attn.py, a vote of each)."""
    model: type[PrefillModel] = PrefillModel
    drafts = False
    """Whether the runner is that of a draft model."""

    @staticmethod
    def declared(config: EngineConfig) -> tuple[Field, ...]:
        """Fields of a session with this config."""
        return _fields(config)

    def engine_runs(self) -> contextlib.AbstractContextManager[None]:
        """Around every call of the engine."""
        return contextlib.nullcontext()

    def _open_backend(self, runner: ModelRunner) -> Any:
        return triton_backend(runner)

    def _asked(self, batch: Batch) -> Mapping[str, Any]:
        """What clients ask for beyond tokens, by the names of the engine's batch."""
        return {}

    @property
    def _triton(self) -> Any:
        """The backend of attention."""
        return self.backend

    # The session

    @property
    def roots(self) -> Mapping[str, object]:
        """The backend, the runner's buffers, the pools; engine configuration is left out."""
        return {
            "backend": self.backend,
            "buffers": self._static(),
            "requests": self.runner.requests,
            "model": self._model.model.attention,
            "req_to_token_pool": self._model_runner.req_to_token_pool,
            "kv_pool": self._model_runner.token_to_kv_pool,
        }

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        if mode == "idle":
            return ()
        return (*attention_outputs(self._config), *mixed_outputs(self._config))

    def graph_key(self) -> int:
        """Tokens of the graph."""
        prepared = self.runner.prepared
        return len(prepared.input_ids) if prepared else self.runner.sizes[-1]

    def _static(self) -> dict[str, torch.Tensor]:
        """Static inputs of the tokens by their fields' names; embeddings as they lie there."""
        found = {name: self.runner.tokens(name) for name in _BY_TOKEN}
        if self._config.image_len:
            positions = self.runner.tokens("mrope_positions")
            found |= {f"mrope_positions.{row}": each for row, each in enumerate(positions)}
            found["input_embeds"] = self.runner.tokens("input_embeds")
        return found

    def static_buffers(self, key: Hashable) -> dict[str, torch.Tensor]:
        return self._static()

    def values_at_capture(self, key: Hashable) -> dict[str, torch.Tensor]:
        return self._count()

    def _count(self) -> dict[str, torch.Tensor]:
        """The count of live tokens, where this release has one."""
        count = self.runner.find(COUNT)
        return {} if count is None else {COUNT: count.clone()}

    def capture(self) -> None:
        with self.engine_runs():
            super().capture()

    def prepare_replay(self, batch: Batch) -> None:
        """The engine pads and prepares inside of its replay: here it decides on the graph."""
        self._use()
        self.ran_eagerly, self._declined = True, ""
        if not batch.largest_rank:  # without requests there is no prefill
            return
        self._write_past(batch)
        with self.engine_runs():
            self._translate(batch, agreed=self._agree(batch))
            self.ran_eagerly = not self.runner.can_run(self._last_batch)
        self._declined = self._rule_against(batch) if self.ran_eagerly else ""

    def _agree(self, batch: Batch) -> bool:
        """Whether every data-parallel rank can take a graph, which is the engine's answer for each;
        an idle rank can."""
        if self._config.dp_size == 1:
            return True
        return all(self.runner.can_replay(size) for size in batch.rank_sizes.tolist() if size)

    def _translate(self, batch: Batch, *, agreed: bool) -> None:
        """The engine's batch, which its model runner may have padded for the ranks."""
        self._last_batch = prefill_batch(
            batch, self._model_runner, agreed=agreed, asked=self._asked(batch)
        )
        self._handed_over = len(self._last_batch.input_ids)

    def _rule_against(self, batch: Batch) -> str:
        """The engine's rule by which this batch takes no graph."""
        if self.runner.one_request and batch.raw_bs > 1:
            return _ONE_REQUEST
        others = batch.rank_sizes.tolist() if self._config.dp_size > 1 else []
        # The batch itself may be padded for ranks that share its tokens.
        if any(map(self._pads_too_much, (len(self._last_batch.input_ids), *others))):
            return _TOO_MUCH.format(self.runner.most_padding)
        return ""

    def _pads_too_much(self, tokens: int) -> bool:
        most = self.runner.most_padding
        fitting = [size for size in self.runner.sizes if size >= tokens]
        return bool(most and fitting) and fitting[0] > most * tokens

    def replay(self, batch: Batch) -> None:
        if not batch.largest_rank:
            return
        with self.engine_runs():
            if self.ran_eagerly:
                self._run_eagerly()
                return
            # As the engine's model runner does.
            with in_forward_context(self.backend, self._last_batch):
                self._outputs = self.runner.replay(self._last_batch)

    def eager(self, batch: Batch) -> None:
        self._use()
        self.ran_eagerly, self._declined = True, ""
        if not batch.largest_rank:
            return
        self._write_past(batch)
        with self.engine_runs():
            # Without graphs on a server, a rank is not padded to a captured count either.
            self._translate(batch, agreed=self._config.dp_size == 1)
            self._run_eagerly()

    def _run_eagerly(self) -> None:
        given, self._outputs = self._last_batch, None
        if not len(given.input_ids):  # an idle rank computes nothing
            return
        with in_forward_context(self.backend, given):
            self.backend.init_forward_metadata(given)
            self._outputs = self._model.forward(given.input_ids, given.positions, given)

    def _given(self) -> Any:
        """The batch that the model ran on."""
        return self._last_batch if self.ran_eagerly else self.runner.prepared

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        return batch.raw_bs, len(self._given().input_ids)

    def declined(self, batch: Batch) -> str:
        return self._declined

    def observe(self, batch: Batch) -> Observation:
        """What the engine hands out, the buffers its graphs read and the metadata of attention."""
        if not batch.largest_rank:
            return Observation(0, 0, 0, 0)
        seen = super().observe(batch)
        seen.shown_tokens = self._handed_over
        return seen

    def used_buffers(self, batch: Batch, rows: int, tokens: int) -> dict[str, torch.Tensor]:
        used = {name: buffer[:tokens].clone() for name, buffer in self._static().items()}
        if "input_embeds" in used:
            embed = self._model.model.attention.embed
            used["input_embeds"] = _tokens_of(used["input_embeds"], embed)
        return used | self._count()

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if not batch.raw_bs:  # nobody's request, for all tokens of the graph, where a rank is idle
            return {}
        of_requests = {name: getattr(self._given(), name).clone() for name in _BY_REQUEST}
        return of_requests | self._attention_metadata()

    def plan(self) -> dict[str, object]:
        return {"max_extend_len": int(self._triton.forward_metadata.max_extend_len)}

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        """The engine has cut off what it padded to a bucket, and an idle rank may have run nothing.

        What it padded for other ranks stays: it has logits for each request alone.
        """
        return {} if self._outputs is None else self.named_outputs(self._outputs)

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        """What the engine has handed out, by the names of outputs."""
        return outputs_in(outputs, self._config)

    def _attention_metadata(self) -> dict[str, torch.Tensor]:
        metadata = self._triton.forward_metadata
        found = {name: getattr(metadata, name) for name in ("qo_indptr", "kv_indptr")}
        found["qo_indptr"] = found["qo_indptr"].int()  # int64 by design, the kernels take either
        found["kv_indices"] = metadata.kv_indices[: found["kv_indptr"][-1]]
        if self._config.swa_window:
            of_window = {name: getattr(metadata, name, None) for name in _OF_WINDOW}
            found |= {name: each for name, each in of_window.items() if each is not None}
        return {name: tensor.clone() for name, tensor in found.items()}


def _tokens_of(rows: torch.Tensor, embed: torch.Tensor) -> torch.Tensor:
    """[tokens] whose embedding each row is; 0 for a row of zeros, -1 for any other row."""
    same = (rows[:, None] == embed).all(-1)
    found = same.int().argmax(-1)
    found[~same.any(-1)] = -1
    found[(rows == 0).all(-1)] = 0
    return found
