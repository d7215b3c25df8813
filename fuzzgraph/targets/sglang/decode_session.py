"""One decode runner with its captured graphs, judged by its inputs and by its backend's metadata.

Subclasses say which attention backend it runs on and what that backend's metadata is.
"""

from __future__ import annotations

import contextlib
from collections.abc import Hashable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import (
    EngineConfig,
    Mode,
    attention_outputs,
)
from fuzzgraph.observation import BatchPart, Observation
from fuzzgraph.ports import GraphEngine, Pools
from fuzzgraph.row_mixing import mixed_outputs
from fuzzgraph.targets.sglang import split_backends, two_batches
from fuzzgraph.targets.sglang.attention_model import (
    AttentionModel,
    in_forward_context,
    outputs_in,
)
from fuzzgraph.targets.sglang.expert_exchange import DEEPEP, DIRTY, LOW_LATENCY, ExpertExchange
from fuzzgraph.targets.sglang.fields import RANK_COUNTS
from fuzzgraph.targets.sglang.forward_batch.data_ranks import pad_for_ranks
from fuzzgraph.targets.sglang.forward_batch.decode import forward_batch
from fuzzgraph.targets.sglang.judged_pools import judged_pools
from fuzzgraph.targets.sglang.runner_session import RunnerSession
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.capture import size_of
from fuzzgraph.targets.sglang.runners.decode import (
    open_decode_runner,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, model_runner
from fuzzgraph.targets.sglang.stubs.reservation import reservation
from fuzzgraph.targets.sglang.stubs.server_args import context_len
from fuzzgraph.world import Batch

BY_TOKEN = ("input_ids", "positions", "out_cache_loc", "mrope_positions")

_ROW_INPUTS = ("input_ids", "positions", "req_pool_indices", "seq_lens", "out_cache_loc")
"""Of a batch that is padded without a graph, as models and backends read them."""

WIDE_BATCH = 265
"""Rows of the widest batch: 9 more than a planner takes at once (sglang triton_backend.py,
get_num_kv_splits: SCHEDULE_SEQ)."""
DATA_RANKS: Mapping[str, Any] = MappingProxyType({"max_dp_size": 8, "idle_alone": False})
"""Of `Capabilities`: servers with data-parallel attention. Idle batches exist beside others alone
(sglang scheduler_dp_attn_mixin.py prepare_mlp_sync_batch_raw, need_idle_batch)."""

_NEEDS_DECODES = (
    "sglang dp_attn.py, _local_decode_cuda_graph_vote: all ranks of a graph decode or are idle"
)
_NEEDS_ENCODERS = "sglang decode runner, can_run: every row of a graph has an encoder"


def refused_capture_sizes(config: EngineConfig) -> str | None:
    """Why the engine would not capture the case's largest size; None where it does.

    It drops sizes that ranks cannot share, or that no batch can reach: the pool, rounded up to a
    multiple of the ranks (sglang get_batch_sizes_to_capture).
    """
    ranks, largest = config.attn_tp_size, config.capture_bs[-1]
    ranks *= 2 if config.two_batch_overlap else 1  # each half is shared by them
    if largest % ranks or largest > -(-config.req_pool_size // ranks) * ranks:
        overlap = " with two_batch_overlap" if config.two_batch_overlap else ""
        return f"attn_tp_size={config.attn_tp_size}{overlap} keeps no graph of {largest} rows"
    return None


def refused_draft_tokens(config: EngineConfig) -> str | None:
    """Why the engine could not capture its verify graphs; None where it can.

    The rows it captures hold at most `draft_tokens` of past (sglang backends,
    get_cuda_graph_seq_len_fill_value) and check as many. No server has a context that short.
    """
    context = context_len(config)
    if "target_verify" in config.modes and context < 2 * config.draft_tokens:
        return f"a context of {context} cannot hold a captured row's drafts"
    return None


class DecodeSession(RunnerSession):
    """An opened runner. `inputs` are the names of its static buffers that are judged."""

    inputs: Sequence[str]
    runner: RunnerDriver
    draft_worker = False
    """Whether the runner is the draft worker's."""
    computes_for_others = False
    """Whether the model computes tokens of other ranks, and so runs where there are no own ones."""
    pads_for_ranks = True
    """Whether what runs without a graph beside other ranks is driven as the engine pads it."""
    compared_at_capture: tuple[str, ...] = (
        "num_token_non_padded", *RANK_COUNTS, "encoder_lens", LOW_LATENCY, DIRTY,
    )  # fmt: skip

    def __init__(
        self,
        config: EngineConfig,
        graphs: GraphEngine,
        *,
        backend: str,
        drafts: bool = False,
        model: Any = None,
        arguments: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        super().__init__()
        self._config = config
        if config.two_batch_overlap:  # see `_shown_metadata`
            self.fields = tuple(field for field in self.fields if field.name in self.inputs)
        deepep = {**two_batches.arguments(config), **arguments}.items() >= DEEPEP.items()
        self._exchange = ExpertExchange(config, deepep=deepep)
        self.fields = (*self.fields, *self._exchange.fields)
        self._last_batch: Any = None
        self._outputs: Any = None
        self._verifies = config.modes == ("target_verify",)
        self._attention = model if isinstance(model, AttentionModel) else None
        with self.engine_runs():
            self._model_runner = model_runner(
                config,
                graphs.device,
                backend=backend,
                speculative=self._verifies,
                drafts=drafts or self.draft_worker,
                judged=self._attention is not None,
                hybrid=getattr(model, "described", None),
                arguments=arguments,
            )
            self._model_runner.model = model
            self._reservation = reservation(config, self._model_runner)
            opened = partial(self._open_backend, self._model_runner)
            self.backend = two_batches.open_backends(
                config, partial(split_backends.open_split, config, self._model_runner, opened)
            )
            if self._attention is not None:
                kv = self._model_runner.token_to_kv_pool
                self._attention.use(kv, self._model_runner.token_to_kv_pool_allocator)
            self.watch(self.backend if config.two_batch_overlap else self._own_backend, graphs)
            self._model_runner.attn_backend = self.backend
            self.runner = self._open_runner(graphs)
        if self._attention is not None:
            self.pools = judged_pools(self._model_runner, config)
        else:
            self.pools = Pools(req_to_token=self._model_runner.req_to_token_pool.req_to_token)

    # What subclasses answer

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        """Around every call of the engine; `batch` is the one that it prepares."""
        return contextlib.nullcontext()

    def _open_backend(self, runner: ModelRunner) -> Any:
        raise NotImplementedError

    def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
        return open_decode_runner(self._model_runner, self._config, graphs, self.remember)

    def _translate(self, batch: Batch) -> Any:
        """The engine's own batch."""
        verifies = batch.raw_bs and batch.mode == "target_verify"
        if self._reservation is not None and verifies:  # an idle rank's scheduler reserves nothing
            self._reservation.reserve_drafts(batch)
        return forward_batch(batch, self._model_runner)

    def _pad_for_ranks(self, given: Any) -> None:
        """What the model runner makes of a batch that runs without a graph beside others."""
        pad_for_ranks(given, self._model_runner)

    def _padded_tokens(self, padded_bs: int) -> int:
        """Entries on the token axis that a graph of this size covers."""
        return padded_bs * self.runner.width

    def _metadata_tensors(self, size: int | None) -> dict[str, torch.Tensor]:
        """Tensors of the backend's metadata, whole, by their field's name.

        Args:
            size: of the graph; None after an eager run.
        """
        return {}

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """Copies of what a kernel reads of the metadata.

        Args:
            lens: [rows] that the graph covers, padded ones included.
        """
        tensors = self._metadata_tensors(self._size)
        return {name: tensor.clone() for name, tensor in tensors.items()}

    def _shown_metadata(self, size: int | None) -> dict[str, torch.Tensor]:
        """`_metadata_tensors`; none where batches are cut in two: what the backends of both halves
        hold shows in outputs, and in what their kernels are given."""
        return {} if self._config.two_batch_overlap else self._metadata_tensors(size)

    def _shown_use(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        """`_used`, by the same rule."""
        return {} if self._config.two_batch_overlap else self._used(lens)

    @property
    def _own_backend(self) -> Any:
        """The backend under test, where it shares the modes with another one."""
        return split_backends.own_backend(self._config, self.backend)

    # The session

    @property
    def roots(self) -> Mapping[str, object]:
        """The backend, the runner's buffers, the pools; engine configuration is left out."""
        model = {} if self._attention is None else {"model": self._attention}
        return {
            "backend": self.backend,
            "buffers": self.runner.buffers,
            "req_to_token_pool": self._model_runner.req_to_token_pool,
            "kv_pool": self._model_runner.token_to_kv_pool,
            **model,
        }

    def promised_outputs(self, mode: Mode) -> tuple[str, ...]:
        """Attention, and what mixes its rows, if the model has a layer that computes it."""
        if self._attention is None or mode == "idle":
            return ()
        return (*attention_outputs(self._config), *mixed_outputs(self._config))

    def shown_outputs(self) -> dict[str, torch.Tensor]:
        if self._attention is None or self._outputs is None:
            return {}
        return self.named_outputs(self._outputs)

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        """What the model has handed out, by the names of outputs."""
        return outputs_in(outputs, self._config)

    def capture(self) -> None:
        with self.engine_runs():
            self._exchange.begin()
            super().capture()

    @property
    def _size(self) -> int | None:
        """Rows of the graph replayed last, None after an eager run."""
        return None if self.ran_eagerly else self.runner.padded_bs

    def graph_key(self) -> Hashable:
        return self.runner.graph_key

    @property
    def _padded_eagerly(self) -> bool:
        """Whether a batch is padded without a graph too: among other ranks, unless it drafts."""
        return self.pads_for_ranks and self._config.dp_size > 1

    def padded_size(self, batch: Batch) -> tuple[int, int]:
        if self.ran_eagerly:
            if self._padded_eagerly:
                return self._last_batch.batch_size, len(self._last_batch.input_ids)
            return batch.raw_bs, self.live_tokens(batch)
        return self.runner.padded_bs, self._padded_tokens(self.runner.padded_bs)

    def _input(self, name: str, padded_bs: int) -> torch.Tensor:
        """The part of a static buffer that a graph of this size reads."""
        buffer: torch.Tensor = getattr(self.runner.buffers, name)
        if name in RANK_COUNTS:
            return buffer
        rows = self._padded_tokens(padded_bs) if name in BY_TOKEN else padded_bs
        return buffer[..., :rows]

    def static_buffers(self, key: Hashable) -> dict[str, torch.Tensor]:
        inputs = {name: getattr(self.runner.buffers, name) for name in self.inputs}
        return {**inputs, **self._shown_metadata(size_of(key))}

    def values_at_capture(self, key: Hashable) -> dict[str, torch.Tensor]:
        names = [name for name in self.compared_at_capture if name in self.inputs]
        inputs = {name: self._input(name, size_of(key)).clone() for name in names}
        return {**inputs, **self._exchange.of_graph()}

    def used_buffers(self, batch: Batch, rows: int, tokens: int) -> dict[str, torch.Tensor]:
        """Optional inputs are read only by a batch that has them."""
        absent = "mrope_positions" if batch.mrope is None else ""
        used = {name: self._input(name, rows).clone() for name in self.inputs if name != absent}
        return {**used, **self._exchange.of_graph()}

    def used_metadata(
        self, batch: Batch, buffers: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        if not self.ran_eagerly:
            return self._shown_use(buffers["seq_lens"])
        given = self._last_batch
        padded = _ROW_INPUTS if self._padded_eagerly else ()
        inputs = {name: getattr(given, name).clone() for name in padded}
        return {**inputs, **self._shown_use(given.seq_lens), **self._exchange.of_forward()}

    def declined(self, batch: Batch) -> str:
        if batch.others_prefill:
            return _NEEDS_DECODES
        if "encoder_lens" in self.inputs and not batch.encoder_lens.all():
            return _NEEDS_ENCODERS
        return ""

    def prepare_replay(self, batch: Batch) -> None:
        self._write_past(batch)
        self.ran_eagerly = False  # until the runner says otherwise
        with self.engine_runs(batch):
            self._use()
            self._exchange.leave_earlier(batch)
            self._last_batch = self._given(batch)
            # The model runner asks `can_run` before it takes the graph, and goes eager otherwise.
            self.ran_eagerly = not self.runner.can_run(self._last_batch)
            if self.ran_eagerly:
                self._forward_eagerly()
            else:
                self.runner.prepare(self._last_batch)

    def replay(self, batch: Batch) -> None:
        if not self.ran_eagerly:
            self._outputs = self.runner.replay()

    def eager(self, batch: Batch) -> None:
        """The same without a graph."""
        self._write_past(batch)
        self.ran_eagerly = True
        with self.engine_runs(batch):
            self._use()
            self._exchange.leave_earlier(batch)
            self._last_batch = self._given(batch)
            # A reference for a graph has no flag to compare with.
            self._exchange.tells = self._takes_no_graph(batch)
            self._forward_eagerly()

    def _takes_no_graph(self, batch: Batch) -> bool:
        """Whether a server runs this step without a graph. A reference for a step that replays one
        runs as on a rank alone: what it hands over has the sizes of the batch."""
        return batch.via == "eager" or not self.runner.can_run(self._last_batch)

    def _given(self, batch: Batch) -> Any:
        """The engine's own batch, and its pool told about it as a model runner does up to 0.5.12
        (sglang model_runner.py _forward_raw)."""
        given = self._translate(batch)
        window_slots = getattr(given, "out_cache_loc_swa", None)
        if window_slots is not None:
            self._model_runner.token_to_kv_pool.set_swa_loc(window_slots)
        return given

    def _forward_eagerly(self) -> None:
        """Metadata and forward without a graph, as the engine's model runner does both."""
        given = self._last_batch
        if self._padded_eagerly:
            with in_forward_context(self.backend, given):
                self._pad_for_ranks(given)
            self._exchange.note_flag()
        self._prepare_eagerly()
        self._outputs = None
        if self._attention is not None and (given.batch_size or self.computes_for_others):
            with in_forward_context(self.backend, given):
                outputs = self._attention.forward(given.input_ids, given.positions, given)
            # An idle rank's padding gets memory without content for attention, and no rank reads
            # what comes of it (sglang base_attn_backend.py AttentionBackend.forward).
            self._outputs = None if given.forward_mode.is_idle() else outputs

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        if self._config.two_batch_overlap and (batch.raw_bs or not self.ran_eagerly):
            seen.parts = self._halves()
        return seen

    def _halves(self) -> tuple[BatchPart, ...]:
        """What the model has computed by itself in the last run, where batches are cut in two."""
        if self.ran_eagerly:
            cut = [
                (*child.tbo_parent_token_range, child.tbo_padded_len)
                for child in self._last_batch.tbo_children
            ]
            return tuple(BatchPart(first, end - first, padded) for first, end, padded in cut)
        sizes = [self._padded_tokens(rows) for rows in self._rows_of_halves()]
        return BatchPart(0, sizes[0], sizes[0]), BatchPart(sizes[0], sizes[1], sizes[1])

    def _rows_of_halves(self) -> tuple[int, int]:
        """Rows of each half that the last run computed, where batches are cut in two."""
        if self.ran_eagerly:
            first, second = self._last_batch.tbo_children
            return first.batch_size, second.batch_size
        rows = self.runner.padded_bs
        return rows // 2, rows - rows // 2

    def _prepare_eagerly(self) -> None:
        if self._last_batch.batch_size:  # an idle batch needs no metadata
            self.backend.init_forward_metadata(self._last_batch)
