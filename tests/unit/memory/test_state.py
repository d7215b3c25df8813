"""Snapshots, names, what counts as unwritten, and the rollback of attributes."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.memory import GuardedMemory, Room, restore_attributes, snapshot_attributes


def test_restore_brings_every_guarded_byte_back() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        buffers = [torch.arange(5), torch.ones(3, 2), torch.zeros(4, dtype=torch.bool)]
    before = memory.snapshot()
    for buffer in buffers:
        buffer.copy_(1 - buffer.to(torch.int64))

    memory.restore(before)

    assert [b.tolist() for b in buffers] == [[0, 1, 2, 3, 4], [[1.0, 1.0]] * 3, [False] * 4]


def test_a_tensor_can_be_read_as_it_was_in_a_snapshot() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        torch.zeros(7)
        table = torch.arange(6, dtype=torch.int32).reshape(2, 3)
    before = memory.snapshot()
    table.fill_(9)
    assert memory.as_in(before, table.t()).tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize("keep_pool", [True, False])
def test_snapshots_of_several_sessions_go_into_one_room_one_after_the_other(
    keep_pool: bool,
) -> None:
    room = Room()
    for size in (3, 300, 30):
        memory = GuardedMemory(keep_pool=keep_pool)
        with memory.intercept("engine"):
            buffer = torch.arange(size)
        with memory.intercept("graph"):
            torch.zeros(size)
        before = memory.snapshot(room)
        buffer.fill_(9)
        assert (before.pool is not None) == keep_pool
        memory.restore(before)
        assert buffer.tolist() == list(range(size))
        assert memory.zones_intact()


def test_memory_allocated_after_a_snapshot_survives_its_restoration() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        torch.zeros(3)
    before = memory.snapshot()
    with memory.intercept("engine"):
        later = torch.ones(3)
    memory.restore(before)
    assert later.tolist() == [1.0] * 3
    assert memory.zones_intact()


def test_intermediates_of_a_later_capture_come_home_with_a_snapshot_that_lacks_them() -> None:
    memory = GuardedMemory()
    with memory.intercept("graph"):
        torch.zeros(3)
    before = memory.snapshot()
    with memory.intercept("graph"):  # an engine that captures anew
        later = torch.zeros(3)
    memory.zone_perturbation(1).apply()
    memory.poison_graph_pool()
    memory.restore(before)
    assert memory.zones_intact()
    assert memory.are_poison([later]) == [True]


def test_a_snapshot_of_two_worlds_at_once_is_refused() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        torch.zeros(3)
    memory.zone_perturbation(1).apply()
    with pytest.raises(FuzzGraphError, match="two worlds"):
        memory.snapshot()


def test_regions_are_named_by_the_shortest_path() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        lens, table, state = torch.zeros(2), torch.zeros(3), torch.zeros(4)
    runner = SimpleNamespace(
        buffers={"seq_lens": lens, 8: [table]}, nested=SimpleNamespace(deeper=[lens[1:], state])
    )
    memory.name_regions({"runner": runner})
    assert [region.name for region in memory.regions] == [
        "runner.buffers.seq_lens",
        "runner.buffers[8][0]",
        "runner.nested.deeper[1]",
    ]


def test_a_region_nobody_holds_is_named_by_its_line() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        torch.zeros(2, 3)
    memory.name_regions({})
    assert memory.regions[0].name.startswith("float32 of test_state.py:")


def test_walking_a_cycle_ends() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        buffer = torch.zeros(2)
    first, second = SimpleNamespace(), SimpleNamespace(buffer=buffer)
    first.other, second.other = second, first
    memory.name_regions({"first": first})
    assert memory.regions[0].name == "first.other.buffer"


def test_only_memory_that_nobody_wrote_is_perturbed_as_unwritten() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        untouched = torch.empty(3, dtype=torch.int32)
        written = torch.empty(3, dtype=torch.int32)
        written.fill_(1)  # the very value of the poison
        part = torch.empty(4, dtype=torch.int32)
        part[1:].zero_()
        zeros = torch.zeros(3)
        by_numpy = torch.empty(2, dtype=torch.int32)
    by_numpy.numpy()[:] = 5
    memory.name_regions(
        {"untouched": untouched, "written": written, "part": part, "zeros": zeros, "np": by_numpy}
    )

    changes = memory.unwritten_perturbation(1)
    for change in changes:
        change.apply()

    assert [change.region for change in changes] == ["untouched"]
    assert untouched.tolist() == [2, 2, 2]
    assert memory.zones_intact()


@dataclass(slots=True)
class Slotted:
    value: int = 0
    items: list[int] = field(default_factory=list)


@dataclass(frozen=True)
class Frozen:
    inner: Slotted


class Engine:
    def __init__(self) -> None:
        self.bs = 4
        self.history = [1, 2]
        self.graphs = {"a": 1}
        self.seen = {3}
        self.queue = deque([1])
        self.slotted = Slotted(7, [7])
        self.frozen = Frozen(Slotted(8))
        self.lens = np.array([1, 2])
        self.buffer = torch.zeros(2)


def test_attributes_are_bound_again_as_they_were() -> None:
    engine = Engine()
    lists, buffer = (engine.history, engine.queue), engine.buffer
    saved = snapshot_attributes({"engine": engine})

    engine.bs = 9
    engine.new = "attribute"  # type: ignore[attr-defined]
    engine.history.append(3)
    engine.graphs.update(b=2)
    engine.seen.add(4)
    engine.queue.append(2)
    engine.slotted.value = 0
    engine.slotted.items.clear()
    engine.frozen.inner.value = 0
    engine.lens[0] = 99
    engine.buffer = torch.ones(5)
    restore_attributes(saved)

    assert (engine.bs, engine.history, engine.graphs, engine.seen) == (4, [1, 2], {"a": 1}, {3})
    assert not hasattr(engine, "new")
    assert (engine.slotted, engine.frozen.inner.value) == (Slotted(7, [7]), 8)
    assert list(engine.queue) == [1] and engine.lens.tolist() == [1, 2]
    assert engine.buffer is buffer
    assert (engine.history, engine.queue) == lists
    assert engine.history is lists[0] and engine.queue is lists[1]


def test_a_container_that_was_replaced_is_bound_again_with_its_content() -> None:
    engine = Engine()
    saved = snapshot_attributes({"engine": engine})
    engine.graphs["b"] = 2
    engine.graphs = {}
    restore_attributes(saved)
    assert engine.graphs == {"a": 1}


def test_an_attribute_that_was_deleted_comes_back() -> None:
    engine = Engine()
    saved = snapshot_attributes({"engine": engine})
    del engine.bs, engine.slotted.value
    restore_attributes(saved)
    assert engine.bs == 4 and engine.slotted.value == 7


def test_attribute_snapshots_can_be_restored_in_any_order() -> None:
    engine = Engine()
    first = snapshot_attributes({"engine": engine})
    engine.history.append(3)
    second = snapshot_attributes({"engine": engine})
    restore_attributes(first)
    restore_attributes(second)
    assert engine.history == [1, 2, 3]
    restore_attributes(first)
    assert engine.history == [1, 2]
