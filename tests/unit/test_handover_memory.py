"""What nobody wrote has no meaning, whoever is handed it."""

from __future__ import annotations

import torch

from fuzzgraph.execution.handovers import drop_unwritten
from fuzzgraph.handover import Handover, Part, part_of
from fuzzgraph.memory import GuardedMemory


def kept(memory: GuardedMemory, tensor: torch.Tensor) -> bool:
    """Whether the content of a tensor that is handed over is judged."""
    taken = Handover("attend", "kernel", tensors={"plan": part_of(tensor)})
    drop_unwritten([taken], memory)
    part: Part = taken.tensors["plan"]
    return part.values is not None


def test_content_of_memory_that_nobody_wrote_is_dropped_and_all_other_is_kept() -> None:
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        unwritten = torch.empty(4, dtype=torch.int32)
        filled = torch.empty(4, dtype=torch.int32).fill_(int(unwritten[0]))
        partly = torch.empty(4, dtype=torch.int32)
        given = torch.ones(4, dtype=torch.int32)
    assert not kept(memory, unwritten) and not kept(memory, unwritten[:2])
    partly[0] = 7  # while no operation is seen
    assert kept(memory, filled) and kept(memory, partly) and kept(memory, given)
    assert kept(memory, torch.ones(4, dtype=torch.int32))  # not of the engine's memory


def test_memory_that_nobody_wrote_has_no_meaning_in_another_world_either() -> None:
    memory = GuardedMemory(capacity=1 << 22)
    with memory.intercept("engine"):
        unwritten = torch.empty(4, dtype=torch.int32)
    before = memory.snapshot()
    image = memory.image_in(before, 1, memory.unwritten_perturbation(1))
    at_home = unwritten.tolist()
    memory.restore_in(image, 1)
    assert unwritten.tolist() != at_home
    assert not kept(memory, unwritten)
    memory.restore(before)
