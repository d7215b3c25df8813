"""Decode runner in which every captured size has a static batch of its own."""

from __future__ import annotations

from fuzzgraph.targets.builtin.input_pool import InputPool
from fuzzgraph.targets.builtin.runners.base import GraphRunner, StaticBatch


class CpuGraphRunner(GraphRunner):
    """Shares no input buffers between sizes."""

    def allocate_batches(self) -> dict[int, StaticBatch]:
        return {size: self.allocate(self.extent(size), InputPool()) for size in self.sizes()}
