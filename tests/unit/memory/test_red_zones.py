"""A write next to a buffer is seen, and described as far as the bytes tell."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.memory import GuardedMemory


def guarded(memory: GuardedMemory, *shape: int, dtype: torch.dtype = torch.int32) -> torch.Tensor:
    with memory.intercept("engine"):
        return torch.zeros(*shape, dtype=dtype)


def beyond(tensor: torch.Tensor, first: int, count: int) -> torch.Tensor:
    """Elements as a kernel addresses them: from the start of `tensor`, bounds or not."""
    return tensor.as_strided((count,), (1,), tensor.storage_offset() + first)


def test_a_write_past_the_end_is_located_in_elements() -> None:
    memory = GuardedMemory()
    buffer = guarded(memory, 5)
    memory.name_regions({"kv_indices": buffer})

    beyond(buffer, 5, 3).fill_(77)
    (hit,) = memory.zone_hits("replay")

    assert (hit.region, hit.side, hit.stage) == ("kv_indices", "after", "replay")
    assert (hit.offset, hit.elements, hit.reach, hit.payload) == (0, 3, 2, 5)
    assert hit.written == [77, 77, 77]
    assert "in guarded" in hit.allocated_at


def test_a_write_before_the_start_is_located_backwards() -> None:
    memory = GuardedMemory()
    buffer = guarded(memory, 5)
    beyond(buffer, -2, 2).copy_(torch.tensor([8, 9]))
    (hit,) = memory.zone_hits("replay")
    assert (hit.side, hit.offset, hit.elements, hit.reach) == ("before", -1, 2, -2)
    assert hit.written == [9, 8]


def test_a_write_at_a_distance_tells_how_far_it_reached() -> None:
    memory = GuardedMemory()
    buffer = guarded(memory, 5)
    beyond(buffer, 8, 1).fill_(3)
    beyond(buffer, 20, 1).fill_(4)
    (hit,) = memory.zone_hits("replay")
    assert (hit.offset, hit.elements, hit.reach) == (3, 2, 15)


@pytest.mark.parametrize(
    "dtype", [torch.bool, torch.uint8, torch.int8, torch.int64, torch.float16, torch.float8_e4m3fn]
)
@pytest.mark.parametrize("length", [1, 3, 8, 64, 0])
def test_one_element_too_many_is_seen_at_every_size(dtype: torch.dtype, length: int) -> None:
    memory = GuardedMemory()
    buffer = guarded(memory, length, dtype=dtype)
    beyond(buffer, length, 1).copy_(torch.zeros(1).to(dtype))
    (hit,) = memory.zone_hits("replay")
    assert (hit.offset, hit.elements, hit.written) == (0, 1, [0])


def test_writes_inside_the_payload_are_no_hit() -> None:
    memory = GuardedMemory()
    guarded(memory, 7).fill_(-1)
    assert memory.zones_intact()
    assert memory.zone_hits("replay") == []


def test_graph_and_scratch_intermediates_have_zones_too() -> None:
    memory = GuardedMemory()
    for segment in ("graph", "scratch"):
        with memory.intercept(segment):
            beyond(torch.zeros(4), 4, 1).fill_(5)
    hits = memory.zone_hits("eager")
    assert [hit.offset for hit in hits] == [0, 0]


def test_the_zone_after_a_buffer_grows_with_it() -> None:
    memory = GuardedMemory(tail_factor=1)
    buffer = guarded(memory, 1000)
    beyond(buffer, 1999, 1).fill_(5)
    (hit,) = memory.zone_hits("replay")
    assert hit.reach == 999


def test_repair_puts_the_zones_back_and_keeps_the_payload() -> None:
    memory = GuardedMemory()
    buffer = guarded(memory, 5)
    buffer.fill_(6)
    beyond(buffer, -1, 8).add_(1)
    memory.repair_zones()
    assert memory.zones_intact()
    assert buffer.tolist() == [7] * 5


def test_zones_of_another_world_are_as_intact_as_at_home() -> None:
    memory = GuardedMemory()
    buffer = guarded(memory, 5)
    before = memory.snapshot()

    memory.zone_perturbation(1).apply()
    assert beyond(buffer, 5, 2).tolist() == [2, 2]
    assert memory.zones_intact()

    beyond(buffer, 5, 1).fill_(1)  # what the zone holds in world A
    (hit,) = memory.zone_hits("replay")
    assert hit.elements == 1

    memory.restore(before)
    assert memory.zones_intact()
    assert beyond(buffer, 5, 2).tolist() == [1, 1]


def test_the_stricter_world_holds_nan() -> None:
    memory = GuardedMemory()
    buffer = guarded(memory, 5, dtype=torch.float32)
    memory.zone_perturbation(2).apply()
    assert beyond(buffer, 5, 2).isnan().all()
    assert memory.zones_intact()


def test_zones_can_be_changed_region_by_region() -> None:
    memory = GuardedMemory()
    first, second = guarded(memory, 5), guarded(memory, 6)
    memory.name_regions({"first": first, "second": second})
    changes = {change.region: change for change in memory.zone_perturbations(1)}

    changes["red zone of second"].apply()

    assert beyond(first, 5, 1).tolist() == [1]
    assert beyond(second, 6, 1).tolist() == [2]
    assert memory.zones_intact()
    beyond(second, 6, 1).fill_(1)
    assert [hit.region for hit in memory.zone_hits("replay")] == ["second"]


def test_zones_that_are_changed_one_by_one_hold_what_all_at_once_hold() -> None:
    memory = GuardedMemory()
    buffers = [guarded(memory, count) for count in (5, 64, 6)]
    home = memory.snapshot()
    for change in memory.zone_perturbations(1):
        change.apply()
    assert memory.zones_intact()
    one_by_one = [beyond(each, each.numel(), 3).tolist() for each in buffers]

    memory.restore(home)
    assert memory.zones_intact()
    memory.zone_perturbation(1).apply()

    assert one_by_one == [beyond(each, each.numel(), 3).tolist() for each in buffers]


def test_changing_one_zone_writes_no_other() -> None:
    memory = GuardedMemory()
    first, second = guarded(memory, 5), guarded(memory, 6)
    memory.name_regions({"first": first, "second": second})
    changes = {change.region: change for change in memory.zone_perturbations(1)}
    beyond(first, 5, 1).fill_(9)

    changes["red zone of second"].apply()

    assert beyond(first, 5, 1).tolist() == [9]  # thousands are changed one by one: all took minutes


def test_an_allocation_in_a_perturbed_world_keeps_the_zones_intact() -> None:
    memory = GuardedMemory()
    guarded(memory, 5)
    memory.zone_perturbation(1).apply()
    guarded(memory, 5)
    assert memory.zones_intact()
