"""Planted bugs of sglang with layers that attend in chunks, each of them the change of one line."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession
from fuzzgraph.targets.sglang.backends.fa3 import FA3_CHUNKED
from fuzzgraph.world import Batch
from tests.targets.sglang.planted import PlantedBackend


class _ChunkOfOnePageMore(BackendSession):
    """Chunks are a page longer than the model's."""

    def _open_backend(self, runner: Any) -> Any:
        runner.attention_chunk_size += self._config.page_size
        return super()._open_backend(runner)


class _AllLayersSeeAll(BackendSession):
    """A layer is taken for one that sees all keys."""

    def _open_backend(self, runner: Any) -> Any:
        runner.model.layer.use_irope = False
        return super()._open_backend(runner)


class _ChunksOfTheFirstBatch(BackendSession):
    """A graph's chunks are those of the first batch that it was replayed with."""

    def __init__(self, *given: Any) -> None:
        super().__init__(*given)
        self._first: dict[int, dict[str, Any]] = {}

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            held = self.backend.decode_cuda_graph_local_attn_metadata
            now = {name: tensor.clone() for name, tensor in held.items()}
            first = self._first.setdefault(self.runner.padded_bs, now)
            for name, tensor in held.items():
                tensor.copy_(first[name])


class _OneTooFew(BackendSession):
    """The last chunk of a row ends before its newest token."""

    def prepare_replay(self, batch: Batch) -> None:
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            lens = self.backend.decode_cuda_graph_local_attn_metadata["local_seqused_k"]
            lens[: batch.raw_bs] = (lens[: batch.raw_bs] - 1).clamp(min=1)


def _planted(session: type[BackendSession]) -> PlantedBackend:
    return PlantedBackend(session, FA3_CHUNKED, name="fa3-chunked")


def a_page_more() -> PlantedBackend:
    return _planted(_ChunkOfOnePageMore)


def sees_all() -> PlantedBackend:
    return _planted(_AllLayersSeeAll)


def first_chunks() -> PlantedBackend:
    return _planted(_ChunksOfTheFirstBatch)


def one_too_few() -> PlantedBackend:
    return _planted(_OneTooFew)
