"""Poison of the graph pool, small and large intermediates alike."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.poison import poison_value
from fuzzgraph.memory.pool_poison import PoolPoison

_SIZES = (3, 70_001, 1, 140_000, 131_072, 5)
"""Elements of float32: three of them fill more than a block, none a whole number of blocks."""


@pytest.mark.parametrize("world", [0, 1])
def test_every_byte_of_the_pool_is_poisoned_whatever_the_size_of_its_tensors(world: int) -> None:
    memory = GuardedMemory(zone_bytes=64)
    with memory.intercept("graph"):
        tensors = [torch.zeros(count) for count in _SIZES]
        tensors.append(torch.zeros(40_000, dtype=torch.int64))
    regions = [region for region in memory.regions if region.segment == "graph"]
    pool = memory.arena.bytes[regions[0].start : regions[-1].end]
    pool.zero_()
    PoolPoison(memory._layout, regions).write(world)
    for tensor in tensors:
        assert torch.equal(tensor, torch.full_like(tensor, poison_value(tensor.dtype, world)))
    assert not (pool.view(torch.int64) == 0).any(), "red zones are poisoned too"
