"""Planted bugs of vLLM's FlashInfer backend, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.vllm.runner_session import RunnerSession
from fuzzgraph.targets.vllm.target import FlashInferTarget


class _LastPagesOfBefore(RunnerSession):
    """`_compute_flashinfer_kv_metadata` leaves the lengths of last pages on the host."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.builder.paged_kv_last_page_len.copy_to_gpu = lambda *_: None


class _PagesOfBefore(RunnerSession):
    """A table of pages that is handed over is the one of the step before."""

    def _step(self, batch: Any) -> None:
        listed = self.builder._compute_flashinfer_kv_metadata
        before = self.builder.paged_kv_indices
        held = before if isinstance(before, type(self.pools.kv_planes[0])) else before.gpu

        def stale(*args: Any, **kwargs: Any) -> Any:
            kept = held.clone()
            made = listed(*args, **kwargs)
            held.copy_(kept)
            return made

        self.builder._compute_flashinfer_kv_metadata = stale
        super()._step(batch)
        del self.builder._compute_flashinfer_kv_metadata


def _planted(session: type[RunnerSession]) -> FlashInferTarget:
    target = FlashInferTarget("vllm-flashinfer")
    target.session = session
    return target


def last_pages_of_before() -> FlashInferTarget:
    return _planted(_LastPagesOfBefore)


def pages_of_before() -> FlashInferTarget:
    return _planted(_PagesOfBefore)
