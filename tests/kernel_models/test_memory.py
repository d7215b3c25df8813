"""What a model reads and writes outside of its arguments."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from fuzzgraph.kernel_models.memory import KernelMemory, Stray, as_numbers


class Strays:
    """Keeps what a launch did wrong."""

    def __init__(self) -> None:
        self.found: list[Stray] = []

    def stray(self, found: Stray) -> None:
        self.found.append(found)

    def misuse(self, argument: str, rule: str, got: str) -> None:
        raise AssertionError(rule)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float8_e4m3fn, torch.int32])
def test_an_index_outside_of_an_argument_is_followed_into_its_storage(dtype: torch.dtype) -> None:
    strays = Strays()
    storage = torch.arange(12).float().view(4, 3).to(dtype)
    got = KernelMemory(strays).rows("x", storage[:2], np.array([1, 3]))
    assert as_numbers(got).tolist() == [[3, 4, 5], [9, 10, 11]]
    (stray,) = strays.found
    assert (stray.kind, stray.argument, stray.offsets.tolist(), stray.mapped) == (
        "read", "x", [9], True,
    )  # fmt: skip


@pytest.mark.parametrize("index", [-1, 4, 10**12])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_memory_outside_of_the_storage_reads_as_0_and_is_not_written(
    index: int, dtype: torch.dtype
) -> None:
    strays = Strays()
    memory, tensor = KernelMemory(strays), torch.ones(4, 3).to(dtype)
    assert as_numbers(memory.rows("x", tensor, np.array([index]))).tolist() == [[0, 0, 0]]
    memory.store("x", tensor, torch.zeros(1, 3), np.array([index]))
    assert as_numbers(tensor).tolist() == [[1, 1, 1]] * 4
    assert [(stray.kind, stray.mapped) for stray in strays.found] == [
        ("read", False), ("write", False),
    ]  # fmt: skip


def test_a_column_beyond_a_row_is_a_stray_although_the_next_row_lies_there() -> None:
    strays = Strays()
    table = torch.arange(6).view(2, 3)
    got = KernelMemory(strays).entries("table", table, np.array([0, 0]), np.array([2, 3]))
    assert got.tolist() == [2, 3]
    assert [stray.offsets.tolist() for stray in strays.found] == [[3]]


def test_an_argument_without_elements_can_be_asked_for_any_index() -> None:
    strays = Strays()
    got = KernelMemory(strays).rows("x", torch.empty(0, 3), np.array([0]))
    assert got.tolist() == [[0, 0, 0]] and len(strays.found) == 1


def test_what_lies_inside_is_no_stray() -> None:
    strays = Strays()
    KernelMemory(strays).rows("x", torch.empty(4, 3), np.array([0, 3]))
    assert not strays.found


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16, torch.int32])
def test_what_is_stored_and_read_back_is_what_torch_makes_of_it(dtype: torch.dtype) -> None:
    memory, whole = KernelMemory(Strays()), torch.zeros(8, 3, dtype=dtype)
    cut, places = whole[::2], np.array([3, 0, 3])
    values = torch.tensor([[1.3, -2.7, 5e4]] * 3, dtype=torch.float64) * torch.tensor(
        [[1], [2], [3]]
    )
    wanted = torch.zeros(4, 3, dtype=dtype)
    wanted[torch.tensor([0, 3])] = values[1:].to(dtype)  # the last of equals wins
    memory.store("x", cut, values.numpy(), places)
    assert torch.equal(cut, wanted) and not whole[1::2].any()
    read = memory.numbers("x", cut, places, scale=0.5)
    assert torch.equal(torch.from_numpy(read), wanted[torch.from_numpy(places)].double() * 0.5)
