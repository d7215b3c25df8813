"""The benchmark that holds compiled kernels against lanes, where both are lanes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from benchmarks.lanes.on_gpu import Compared
from tests.lanes.kernels import small_floats

BENCHMARK = Path(__file__).resolve().parents[2] / "benchmarks" / "lanes" / "on_gpu.py"


def apart(got: torch.Tensor, want: torch.Tensor) -> tuple[int, int]:
    seen = Compared()
    seen.add(got, want)
    return seen.ulp, seen.other


@pytest.mark.parametrize("dtype", [torch.float32, torch.float16, torch.bfloat16])
def test_neighbours_are_one_ulp_apart_on_either_side_of_zero(dtype: torch.dtype) -> None:
    tiny = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    ones, zeros = torch.tensor([1.0, -1.0], dtype=dtype), torch.tensor([0.0, -0.0], dtype=dtype)
    assert apart(ones, ones * (1 + torch.finfo(dtype).eps)) == (1, 0)
    assert apart(zeros, zeros.flip(0)) == (0, 0)
    assert apart(zeros, torch.tensor([tiny, -tiny], dtype=dtype)) == (1, 0)


def test_what_is_nan_on_one_side_and_whole_numbers_that_differ_are_counted_apart() -> None:
    nan = float("nan")
    assert apart(torch.tensor([nan, nan, 1.0]), torch.tensor([nan, 2.0, 1.0])) == (0, 1)
    assert apart(torch.tensor([1, 2]), torch.tensor([1, 3])) == (0, 1)


def test_lanes_beside_the_stock_interpreter_leave_the_same() -> None:
    """But where it rounds to FP8, which it does as no device."""
    command = [sys.executable, str(BENCHMARK), "--device", "cpu", "--launches", "1"]
    said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    rows = [line.split(" | ") for line in said.splitlines()[2:]]
    assert len(rows) > 20
    found = {cells[0].strip("| `"): tuple(cells[1:2] + cells[3:5]) for cells in rows}
    assert small_floats.DRAWS.keys() < found.keys()
    others = found.keys() - small_floats.DRAWS.keys()
    assert {found[kernel] for kernel in others} == {("1", "0", "0")}
