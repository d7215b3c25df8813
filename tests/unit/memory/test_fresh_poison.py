"""What a step allocates without content holds the poison of its world, where no graph has it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch

from fuzzgraph.graphs import Recorder
from fuzzgraph.memory import GuardedMemory, poison_value

LIKE = torch.zeros(2, 3, dtype=torch.int32)
MAKERS: dict[str, Callable[[], torch.Tensor]] = {
    "empty": lambda: torch.empty(2, 3, dtype=torch.int32),
    "empty_like": lambda: torch.empty_like(LIKE),
    "empty_strided": lambda: torch.empty_strided((2, 3), (1, 2), dtype=torch.int32),
    "empty_permuted": lambda: torch.empty_permuted((2, 3), (1, 0), dtype=torch.int32),
    "new_empty": lambda: LIKE.new_empty((2, 3)),
    "new_empty_strided": lambda: LIKE.new_empty_strided((2, 3), (3, 1)),
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())
def test_fresh_memory_holds_the_poison_of_the_home_world(make: Callable[[], torch.Tensor]) -> None:
    memory = GuardedMemory()
    with memory.over_lanes():
        made = make()
    assert made.unique().tolist() == [poison_value(torch.int32, 0)]


@pytest.mark.parametrize(
    "dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.bool, torch.uint16]
)
def test_each_dtype_has_its_poison(dtype: torch.dtype) -> None:
    memory = GuardedMemory()
    with memory.over_lanes():
        made = torch.empty(5, dtype=dtype)
    assert made.tolist() == [poison_value(dtype, 0)] * 5


def test_it_changes_with_the_world_and_comes_home_with_the_memory() -> None:
    memory = GuardedMemory()
    home = memory.snapshot()

    def held() -> object:
        with memory.over_lanes():
            return torch.empty(1, dtype=torch.int64).item()

    (moved,) = [
        each for each in memory.zone_perturbations(1) if each.region == "fresh memory of the step"
    ]
    moved.apply()
    assert held() == poison_value(torch.int64, 1)
    memory.restore(home)
    assert held() == poison_value(torch.int64, 0)
    memory.zone_perturbation(1).apply()
    assert held() == poison_value(torch.int64, 1)


def test_behind_a_step_torch_has_its_own_functions_again() -> None:
    own = torch.empty, torch.empty_like
    memory = GuardedMemory()
    with memory.over_lanes(), memory.over_lanes():
        assert torch.empty is not own[0]
    assert (torch.empty, torch.empty_like) == own


def test_a_graph_that_is_captured_meanwhile_holds_nothing_of_it() -> None:
    memory = GuardedMemory()

    def captured(key: str) -> list[str]:
        graph = Recorder(memory).capture(lambda: torch.empty(3).fill_(2.0), key=key)
        return [op.name for op in graph.trace]

    before = captured("before")
    with memory.over_lanes():
        assert captured("meanwhile") == before
