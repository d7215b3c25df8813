"""Engines that leave out the rows behind a block of a wide batch; opened by name."""

from __future__ import annotations

from functools import partial

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession
from fuzzgraph.targets.sglang.backends.triton import TritonSession, TritonTarget
from fuzzgraph.world import Batch
from tests.targets.sglang.planted import PlantedBackend

__all__ = ["lengths_of_a_block", "sums_of_a_block"]


class _SumsOfABlock(TritonSession):
    def prepare_replay(self, batch: Batch) -> None:
        before = self._sums().clone()
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            self._sums()[257:] = before[257:]

    def _sums(self) -> torch.Tensor:
        found: torch.Tensor = self.backend.kv_indptr
        return found


class _TritonMutant(TritonTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> TritonSession:
        return _SumsOfABlock(config, graphs)


sums_of_a_block = partial(_TritonMutant, "sglang-triton", "decode")
"""Offsets of the first 256 rows alone are brought up to date."""


class _LengthsOfABlock(BackendSession):
    def prepare_replay(self, batch: Batch) -> None:
        before = self._lengths().clone()
        super().prepare_replay(batch)
        if not self.ran_eagerly:
            self._lengths()[128:] = before[128:]

    def _lengths(self) -> torch.Tensor:
        metadata = self.backend.decode_cuda_graph_metadata
        found: torch.Tensor = metadata["cache_seqlens"]
        return found


lengths_of_a_block = partial(PlantedBackend, _LengthsOfABlock)
"""Lengths of the first 128 rows alone are brought up to date."""
