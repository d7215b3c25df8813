"""Attention backends whose preparation is a graph too: targets such as `sglang-fa3-glue`.

With SGLANG_ENABLE_METADATA_GLUE_GRAPH=1 a server captures `init_forward_metadata_out_graph` when a
batch fills its graph for the third time, and replays it for each later batch that fills it. What
the preparation took from the host, or from a tensor of that one batch, is then that of the third
batch for ever. Source: sglang metadata_glue_graph.py, from 0.5.19 on.

Real: what is real without it, and `MetadataGlueGraph`. A session opens as such a server is after
its first requests: three short batches have filled each graph. Padded batches are prepared anew.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from typing import Any, Literal

import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.errors import NotInRelease
from fuzzgraph.layout import plan
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_graph import CudaGraphs
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends import aiter, fa3, flashmla, nsa, trtllm_mha, trtllm_mla
from fuzzgraph.targets.sglang.backends.attention_backend import (
    BackendSession,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.triton import TritonSession, TritonTarget
from fuzzgraph.targets.sglang.decode_session import DecodeSession
from fuzzgraph.targets.sglang.release import demand_release, release
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.decode_cuda_graph_runner import DecodeCudaGraphRunnerDriver
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.world import Batch

_SWITCH = "SGLANG_ENABLE_METADATA_GLUE_GRAPH"
_FROM = (0, 5, 19)
_FILLED = 3
"""The batch that fills a graph so often is captured (MetadataGlueGraph.NUM_WARMUP, and one)."""
_BACKENDS = {
    "aiter": aiter.AITER,
    "fa3": fa3.FA3,
    "fa3-mla": fa3.FA3_MLA,
    "flashmla": flashmla.FLASHMLA,
    "nsa": nsa.NSA,
    "trtllm-mha": trtllm_mha.TRTLLM_MHA,
    "trtllm-mla": trtllm_mla.TRTLLM_MLA,
}


def target(name: str, backend: str, mode: Literal["decode", "target_verify"]) -> SglangTarget:
    """The target of a backend in one mode."""
    if backend == "triton":
        return TritonGlueTarget(name, mode)
    return BackendGlueTarget(name, _BACKENDS[backend], mode)


class _Glue(SglangTarget):
    """Of releases that have such graphs; on one data-parallel rank."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self.about = f"{self.about}, also of metadata"
        verifies = "target_verify" in self.capabilities.modes
        self.capabilities = self.capabilities.replace(
            max_dp_size=1,
            idle_alone=True,
            two_batch_overlap=False,
            backends_beside=("none",),
            trtllm_kernels=("trtllm_gen",),
            platforms=("cuda",),
            ngram_drafts=verifies,
        )

    def refused(self, config: EngineConfig) -> str | None:
        return super().refused(config) or _refused_ngram_drafts(config)

    def modules(self) -> tuple[str, ...]:
        demand_release(_FROM, "captures no preparation of metadata", self.name)
        return super().modules()


def _refused_ngram_drafts(config: EngineConfig) -> str | None:
    """Why no server has n-gram speculation with the config; None if one has."""
    if not config.ngram_drafts:
        return None
    if config.spec_topk > 1 and config.page_size > 1:
        branches, pages = f"spec_topk={config.spec_topk}", f"page_size={config.page_size}"
        return f"speculative_hook.py, _handle_ngram, refuses {branches} with {pages}"
    if config.virtual_pages:
        return "kv_cache_hook.py refuses n-gram speculation with virtual_pages"
    return None


class BackendGlueTarget(_Glue, BackendTarget):
    """On a backend whose kernels are modelled."""

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BackendGlueSession:
        return BackendGlueSession(config, graphs, self.backend)


class TritonGlueTarget(_Glue, TritonTarget):
    """On the Triton backend."""

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> TritonGlueSession:
        return TritonGlueSession(config, graphs)


class _GlueSession(DecodeSession):
    """A decode runner whose graphs were each filled often enough."""

    runner: DecodeCudaGraphRunnerDriver
    _preparations: CudaGraphs | None = None

    def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
        self._preparations = CudaGraphs(graphs, "metadata", prepares=True)
        with _switched_on():
            return super()._open_runner(graphs)

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        made = self._preparations
        names = {} if made is None else {**made.names(), "Stream": _no_stream}
        with super().engine_runs(batch), replaced_names([torch.cuda], names):
            yield

    def _translate(self, batch: Batch) -> Any:
        """The engine's own batch, its mask where the worker writes it."""
        made = super()._translate(batch)
        mask: Any = getattr(self.backend, "verify_mask", None) if self._writes_in_place else None
        written = mask is not None and mask.is_read and mask.fits(batch.raw_bs)
        if written and made.spec_info is not None:
            cells = made.spec_info.custom_mask
            mask.buffer.fill_(True)
            mask.buffer[: len(cells)].copy_(cells)
            made.spec_info.custom_mask = mask.buffer
        return made

    @property
    def _writes_in_place(self) -> bool:
        """Whether the worker writes a mask that fits into the backend's buffer, as EAGLE's does
        (sglang eagle_worker_common.py, `verify_mask`); the n-gram worker makes a new tensor for
        each step (ngram_worker.py, _prepare_for_speculative_decoding)."""
        return not self._config.ngram_drafts

    def capture(self) -> None:
        super().capture()
        for size in self._config.capture_bs:
            if size <= self._config.req_pool_size:  # larger ones are never filled
                self._fill_graph(size)
        for watch in self._watches:
            watch.begin()
        if self.runner.metadata_glue.disabled:
            raise NotInRelease(
                f"sglang {release()} cannot capture how {type(self.backend).__name__} prepares this"
                " config, and does without. Name the target whose name lacks '-glue'."
            )

    def _fill_graph(self, size: int) -> None:
        batch = _full_batch(self._config, size)
        for _ in range(_FILLED):
            with self.engine_runs(batch):
                self._use()
                self.runner.prepare(self._given(batch))


class BackendGlueSession(_GlueSession, BackendSession):
    """Of a backend whose kernels are modelled."""


class TritonGlueSession(_GlueSession, TritonSession):
    """Of the Triton backend."""


@contextlib.contextmanager
def _switched_on() -> Iterator[None]:
    """While a runner opens, which is when it asks; a worker may drive other targets later."""
    os.environ[_SWITCH] = "1"
    try:
        yield
    finally:
        del os.environ[_SWITCH]


def _no_stream(*_: Any, **__: Any) -> None:
    """Captures name a stream, which the recorder does not model."""


def _full_batch(config: EngineConfig, size: int) -> Batch:
    """As many requests as the graph has rows, as short as can be."""
    (mode,) = config.modes
    verifies = mode == "target_verify"
    tokens = config.draft_tokens if verifies else 1
    length = tokens + 1 if verifies else 1
    rows = tuple(BatchRow(request=row, seq_len=length, new_tokens=tokens) for row in range(size))
    step = ReplayStep(mode=mode, rows=rows)
    (batch,) = plan(Case(schema_version=1, config=config, steps=(step,)))
    return batch
