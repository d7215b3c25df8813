"""Engines that leave out the rows behind a block of a wide batch; opened by name."""

from __future__ import annotations

from functools import partial

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.backends.attention_backend import BackendSession
from fuzzgraph.targets.sglang.backends.triton import TritonSession, TritonTarget
from fuzzgraph.world import Batch
from tests.targets.sglang.changed_lines import change_line
from tests.targets.sglang.planted import PlantedBackend

__all__ = ["lengths_of_a_block", "splits_of_a_block"]


class _SplitsOfABlock(TritonSession):
    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        super().__init__(config, graphs)
        change_line(self.backend, "get_num_kv_splits", "num_seq < 256", "num_seq < 512")


class _TritonMutant(TritonTarget):
    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> TritonSession:
        return _SplitsOfABlock(config, graphs)


splits_of_a_block = partial(_TritonMutant, "sglang-triton", "decode")
"""The planner of splits takes 256 rows of a batch of up to 511."""


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
