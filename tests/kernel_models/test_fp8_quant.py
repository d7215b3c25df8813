"""Rows become FP8 by a scale that is known beforehand."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.fp8_quant import static_scaled_fp8_quant
from tests.kernel_models.strict_runs import strictly

FP8 = torch.float8_e4m3fn


def quantised(rows: torch.Tensor, **changed: Any) -> torch.Tensor:
    """What the kernel writes for these rows."""
    given: dict[str, Any] = {
        "out": torch.zeros(rows.shape).to(FP8), "input": rows, "scale": torch.tensor(0.5),
        "group_shape": (-1, -1),
    } | changed  # fmt: skip

    with strictly():
        static_scaled_fp8_quant(**given)
    out: torch.Tensor = given["out"].float()
    return out


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32])
def test_numbers_are_divided_by_the_scale(dtype: torch.dtype) -> None:
    rows = (torch.arange(8).view(2, 4) / 8).to(dtype)
    assert torch.equal(quantised(rows), rows.float() * 2)
    assert torch.equal(quantised(rows, group_shape=None), rows.float() * 2)


def test_rows_are_read_by_their_stride() -> None:
    packed = torch.arange(16.0).view(2, 8) / 8
    assert torch.equal(quantised(packed[:, 2:6]), packed[:, 2:6] * 2)


def test_what_fp8_cannot_hold_becomes_its_largest_number() -> None:
    rows = torch.tensor([[1e4, -1e4, float("inf"), float("nan")]])
    assert quantised(rows).tolist() == [[448.0, -448.0, 448.0, 448.0]]


def test_no_row_launches_nothing() -> None:
    assert quantised(torch.zeros(0, 4)).shape == (0, 4)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scale": torch.tensor(0.5).double()}, "scale must be float32"),
        ({"input": torch.zeros(2, 4).to(FP8)}, "input must be float32 or"),
        ({"input": torch.zeros(4, 2).T}, "input must be contiguous in its last"),
        ({"out": torch.zeros(2, 4)}, "out must be float8_e4m3fn"),
        ({"out": torch.zeros(1, 4).to(FP8)}, r"out must be \[2, 4\]"),
    ],
)
def test_what_the_host_code_refuses_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelRefused, match=said):
        quantised(torch.zeros(2, 4), **changed)


@pytest.mark.parametrize("changed", [{"scale": torch.ones(4)}, {"group_shape": (1, -1)}])
def test_more_scales_than_one_are_not_modelled(changed: dict[str, Any]) -> None:
    with pytest.raises(KernelNotModelled, match="static_scaled_fp8_quant"):
        quantised(torch.zeros(2, 4), **changed)
