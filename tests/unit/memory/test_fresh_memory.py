"""Whatever allocates ends up in guarded memory, with its values, shape and strides intact."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
import torch

from fuzzgraph.errors import UsageError
from fuzzgraph.memory import GuardedMemory, poison_value

BASE = torch.arange(6.0).reshape(2, 3)
IMAGE = torch.arange(16.0).reshape(2, 2, 2, 2)

ALLOCATIONS: dict[str, Callable[[], torch.Tensor]] = {
    "from_numpy": lambda: torch.from_numpy(np.arange(3, dtype=np.int32)),
    "tensor of a list": lambda: torch.tensor([3, 4]),
    "as_tensor": lambda: torch.as_tensor([1.5, 2.5]),
    "new_zeros": lambda: BASE.new_zeros(4),
    "new_full": lambda: BASE.new_full((2, 2), 7),
    "new_tensor": lambda: BASE.new_tensor([1.0, 2.0]),
    "zeros_like": lambda: torch.zeros_like(BASE),
    "arange": lambda: torch.arange(5),
    "clone": lambda: BASE.clone(),
    "cat": lambda: torch.cat([BASE, BASE]),
    "stack": lambda: torch.stack([BASE, BASE]),
    "repeat": lambda: BASE.repeat(2, 1),
    "cumsum": lambda: BASE.cumsum(0),
    "to another dtype": lambda: BASE.to(torch.float16),
    "pad": lambda: torch.nn.functional.pad(BASE, (1, 2)),
    "indexing": lambda: BASE[[1, 0]],
    "arithmetic": lambda: BASE * 2 + 1,
    "contiguous copy": lambda: BASE.t().contiguous(),
    "out form that resizes": lambda: torch.cumsum(BASE, 0, out=torch.empty(0)),
    "resize": lambda: torch.zeros(2).resize_(2),
    "size 0": lambda: torch.zeros(0, 4),
    "scalar": lambda: torch.zeros(()),
    "channels_last": lambda: IMAGE.contiguous(memory_format=torch.channels_last),
    "fp8": lambda: BASE.to(torch.float8_e4m3fn),
    "bool": lambda: BASE > 2,
    "complex": lambda: torch.complex(BASE, BASE),
}


@pytest.mark.parametrize("allocate", ALLOCATIONS.values(), ids=ALLOCATIONS.keys())
def test_a_fresh_tensor_is_guarded_and_looks_as_it_would_unguarded(
    allocate: Callable[[], torch.Tensor],
) -> None:
    memory = GuardedMemory()
    expected = allocate()

    with memory.intercept("engine"):
        guarded = allocate()

    assert memory.region_of(guarded) is not None
    assert (guarded.dtype, guarded.shape) == (expected.dtype, expected.shape)
    assert guarded.stride() == expected.stride()
    assert guarded.tolist() == expected.tolist()
    assert guarded.data_ptr() % 64 == 0
    assert memory.zones_intact()


def test_a_result_of_several_tensors_is_guarded_one_by_one() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        values, indices = BASE.max(1)
    regions = {memory.region_of(values), memory.region_of(indices)}
    assert len(regions) == 2 and None not in regions
    assert values.tolist() == [2.0, 5.0] and indices.tolist() == [2, 2]


def test_a_view_stays_in_the_region_of_its_base() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        base = torch.zeros(4, 4)
        view = base[1:].t()
    assert memory.region_of(view) is memory.region_of(base)
    assert len(memory.regions) == 1


def test_a_view_of_unguarded_memory_stays_where_it_is() -> None:
    memory = GuardedMemory()
    outside = torch.zeros(4)
    with memory.intercept("engine"):
        view = outside[1:]
        reshaped = outside.reshape(2, 2)
        outside.add_(1)
    assert memory.regions == []
    assert view.untyped_storage().data_ptr() == outside.untyped_storage().data_ptr()
    assert reshaped.tolist() == [[1.0, 1.0], [1.0, 1.0]]


def test_a_result_with_repeated_elements_keeps_its_strides() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        repeated = torch.empty_strided((3, 2), (0, 1)).fill_(4)
    assert repeated.stride() == (0, 1)
    assert repeated.tolist() == [[4.0, 4.0]] * 3


def test_an_array_shares_its_memory_where_adoption_is_switched_off() -> None:
    memory = GuardedMemory(adopt_numpy=False)
    array = np.zeros(3, dtype=np.int32)
    with memory.intercept("engine"):
        tensor = torch.from_numpy(array)
    array[1] = 5
    assert tensor.tolist() == [0, 5, 0]


def test_nothing_is_guarded_outside_of_interception() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        pass
    assert memory.region_of(torch.zeros(3)) is None
    assert memory.regions == []


def test_a_tensor_that_grows_moves_instead_of_running_over_its_neighbour() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        grower = torch.tensor([1, 2])
        neighbour = torch.zeros(64, dtype=torch.int64)
        grower.resize_(4096).fill_(9)
    assert memory.zones_intact()
    assert neighbour.tolist() == [0] * 64
    assert memory.region_of(grower) is not memory.regions[0]


def test_a_tensor_that_grows_takes_its_elements_along() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        grower = torch.tensor([1, 2])
        grower.resize_(100)
    assert grower[:2].tolist() == [1, 2]


def test_a_transposed_tensor_that_grows_takes_its_elements_along_as_they_lay() -> None:
    free = torch.arange(6).view(2, 3).t().resize_(100)
    with GuardedMemory().intercept("engine"):
        guarded = torch.arange(6).view(2, 3).t().resize_(100)
    assert guarded[:6].tolist() == free[:6].tolist() == [0, 1, 2, 3, 4, 5]


POISONED = [
    (torch.int8, 1),
    (torch.int32, 1),
    (torch.int64, 1),
    (torch.uint16, 1),
    (torch.uint8, 0xA5),
    (torch.bool, True),
    (torch.float32, 1008.0),
    (torch.bfloat16, 1008.0),
    (torch.float16, 1008.0),
    (torch.float8_e4m3fn, 112.0),
    (torch.float8_e5m2, 112.0),
    (torch.complex64, 1008.0),
]


@pytest.mark.parametrize(("dtype", "value"), POISONED, ids=[str(d) for d, _ in POISONED])
def test_memory_without_content_holds_the_poison_of_its_dtype(
    dtype: torch.dtype, value: complex
) -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        born_empty = torch.empty(3, 5, dtype=dtype)
    assert born_empty.tolist() == [[value] * 5] * 3
    assert memory.regions[0].born_empty


@pytest.mark.parametrize("dtype", [torch.int32, torch.float32, torch.bool, torch.float8_e4m3fn])
def test_the_two_worlds_hold_different_poison(dtype: torch.dtype) -> None:
    assert poison_value(dtype, 0) != poison_value(dtype, 1)


def test_a_region_says_which_line_allocated_it() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        torch.zeros(3)
    assert memory.regions[0].allocated_at.startswith("test_fresh_memory.py:")
    assert memory.regions[0].allocated_at.endswith("in test_a_region_says_which_line_allocated_it")


def test_scratch_memory_is_used_again_by_the_next_run() -> None:
    memory = GuardedMemory()
    addresses = []
    for _ in range(2):
        with memory.intercept("scratch"):
            addresses.append(torch.zeros(8).data_ptr())
            torch.empty(4)
    assert addresses[0] == addresses[1]
    assert len(memory.regions) == 2


def test_scratch_memory_born_empty_is_poisoned_again_in_every_run() -> None:
    memory = GuardedMemory()
    for _ in range(3):
        with memory.intercept("scratch"):
            born_empty = torch.empty(4, dtype=torch.int32)
            assert born_empty.tolist() == [1] * 4
            born_empty.fill_(7)


def test_zones_of_scratch_memory_hold_after_runs_of_different_layout() -> None:
    memory = GuardedMemory()
    for sizes in ([3, 5], [3, 5], [3, 40, 5], [9], [3, 5]):
        with memory.intercept("scratch"):
            for size in sizes:
                torch.ones(size)
        assert memory.zones_intact()


def test_a_large_configuration_fits_into_the_default_arena() -> None:
    memory = GuardedMemory()
    with memory.intercept("engine"):
        pool = torch.zeros(67 * 128, 8, 128)
    assert memory.region_of(pool) is not None


def test_a_full_arena_says_how_much_was_asked_for_and_how_to_get_more() -> None:
    memory = GuardedMemory(capacity=1 << 20)
    with (
        pytest.raises(UsageError, match=r"does not fit .* larger capacity"),
        memory.intercept("engine"),
    ):
        torch.zeros(1 << 20)


def test_interception_ends_when_an_allocation_fails() -> None:
    memory = GuardedMemory(capacity=1 << 20)
    with pytest.raises(UsageError), memory.intercept("engine"):
        torch.zeros(1 << 20)
    assert not memory.intercepting
    assert memory.region_of(torch.zeros(2)) is None
