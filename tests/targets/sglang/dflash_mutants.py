"""Planted bugs of drafted blocks, each of them the change of one line of the engine."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.kernel_models import trtllm_gen
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.trtllm_mha import TRTLLM_MHA
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.dflash import BlockDraftSession, BlockDraftTarget

_Plant = Callable[[Any, Any], None]
"""Changes the engine's worker and its decode runner, right after their constructors."""


class _Planted(BlockDraftTarget):
    def __init__(self, plant: _Plant, backend: str = "fa3") -> None:
        super().__init__(f"sglang-dflash-draft-{backend}", backend)
        self._plant = plant

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> BlockDraftSession:
        plant = self._plant

        class Session(BlockDraftSession):
            def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
                driver = super()._open_runner(graphs)
                plant(self._worker.engine, driver._engine)
                return driver

        return Session(config, graphs, self.backend)


def _embeddings_of_the_batch_before(worker: Any, engine: Any) -> None:
    """Graphs read the embeddings of the block before: `load_batch` leaves the copy out."""
    load = engine.load_batch

    def changed(forward_batch: Any, *given: Any, **named: Any) -> None:
        forward_batch.input_embeds = None
        load(forward_batch, *given, **named)

    engine.load_batch = changed


def _drafts_of_the_places_before(worker: Any, engine: Any) -> None:
    """The sampler takes the hidden states of all tokens but the last, and not but the first."""
    sampler = type(worker._draft_sampler)

    class Changed(sampler):  # type: ignore[misc, valid-type]
        def __call__(self, hidden_states: Any, input_ids: Any = None) -> None:
            super().__call__(hidden_states.roll(1, dims=0), input_ids)

    worker._draft_sampler.__class__ = Changed


def _drafts_of_live_rows_lie_behind_padded_ones(worker: Any, engine: Any) -> None:
    """The sampler stores the drafts of a graph at the end of its buffer."""
    sampler = type(worker._draft_sampler)

    class Changed(sampler):  # type: ignore[misc, valid-type]
        def __call__(self, hidden_states: Any, input_ids: Any = None) -> None:
            super().__call__(hidden_states.flip(0), input_ids)

    worker._draft_sampler.__class__ = Changed


def _slots_from_the_first_draft_on(worker: Any, engine: Any) -> None:
    """Places and slots of a block begin one token behind its past."""
    generate = worker.forward_batch_generation

    def changed(batch: Any, *given: Any, **named: Any) -> Any:
        batch.seq_lens = batch.seq_lens + 1
        return generate(batch, *given, **named)

    worker.forward_batch_generation = changed


def _lengths_on_the_host_without_the_block(worker: Any, engine: Any) -> None:
    """`seq_lens_cpu.add_(block_size)` is left out."""
    load = engine.load_batch

    def changed(forward_batch: Any, *given: Any, **named: Any) -> None:
        forward_batch.seq_lens_cpu = forward_batch.seq_lens_cpu - worker.block_size
        load(forward_batch, *given, **named)

    engine.load_batch = changed


def _windows_begin_with_the_request(worker: Any, engine: Any) -> None:
    """The page map of a window has the first keys of a request, and not the last."""
    rebuild = worker._rebuild_compact_draft_cache

    def changed(*, prefix_lens: torch.Tensor, draft_prefix_lens: Any, **named: Any) -> None:
        rebuild(prefix_lens=draft_prefix_lens, draft_prefix_lens=draft_prefix_lens, **named)

    worker._rebuild_compact_draft_cache = changed


def _a_kernel_has_failed(worker: Any, engine: Any) -> None:
    """The worker lays blocks out without its kernel, as it does once that has failed."""
    worker._use_triton_prepare_block = False


def attention_in_the_dtype_of_queries() -> BlockDraftTarget:
    """The kernel is not told in which dtype to answer: with KV in FP8, queries are in FP8."""

    def decode(*given: Any, out_dtype: Any = None, **named: Any) -> Any:
        return trtllm_gen.trtllm_batch_decode_with_kv_cache(*given, **named)

    kernels = tuple(
        (holder, name, Stub(decode=Stub(trtllm_batch_decode_with_kv_cache=decode)))
        for holder, name, _ in TRTLLM_MHA.kernels
    )
    target = BlockDraftTarget("sglang-dflash-draft-trtllm-mha", "trtllm-mha")
    target.backend = replace(TRTLLM_MHA, kernels=kernels)
    return target


def embeddings_of_the_batch_before() -> _Planted:
    return _Planted(_embeddings_of_the_batch_before)


def drafts_of_the_places_before() -> _Planted:
    return _Planted(_drafts_of_the_places_before)


def drafts_of_live_rows_lie_behind_padded_ones() -> _Planted:
    return _Planted(_drafts_of_live_rows_lie_behind_padded_ones)


def slots_from_the_first_draft_on() -> _Planted:
    return _Planted(_slots_from_the_first_draft_on)


def lengths_on_the_host_without_the_block() -> _Planted:
    return _Planted(_lengths_on_the_host_without_the_block, "flashinfer")


def windows_begin_with_the_request() -> _Planted:
    return _Planted(_windows_begin_with_the_request)


def a_kernel_has_failed() -> _Planted:
    return _Planted(_a_kernel_has_failed)
