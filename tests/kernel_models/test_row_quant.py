"""Rows become FP8 or INT8: by groups of columns, by rows, and by one scale for all."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models import row_quant
from tests.kernel_models.strict_runs import strictly

FP8 = torch.float8_e4m3fn


def quantised(
    quantise: Callable[..., None], rows: torch.Tensor, scales: torch.Tensor, *rest: Any, **more: Any
) -> tuple[torch.Tensor, torch.Tensor]:
    """(what the kernel writes, its scales)."""
    out = torch.zeros(rows.shape).to(more.get("dtype", FP8))

    with strictly():
        quantise(rows, more.get("out", out), scales, *rest)
    return out.float(), scales


def by_groups(rows: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    scales = more.pop("scales", torch.zeros(len(rows), rows.shape[1] // 16))
    return quantised(row_quant.per_token_group_quant, rows, scales, more.pop("group", 16), **more)


def by_rows(rows: torch.Tensor, **more: Any) -> tuple[torch.Tensor, torch.Tensor]:
    scales = more.pop("scales", torch.zeros(len(rows), 1))
    return quantised(row_quant.per_token_quant_fp8, rows, scales, **more)


def test_each_group_has_the_scale_of_its_largest_number() -> None:
    rows = torch.ones(2, 32)
    rows[1, 16:], rows[0, 3] = 2.0, -4.0
    out, scales = by_groups(rows)
    torch.testing.assert_close(scales * 448, torch.tensor([[4.0, 1.0], [1.0, 2.0]]))
    assert out[0, :4].tolist() == [112.0, 112.0, 112.0, -448.0]
    assert set(out[:, 16:].flatten().tolist()) == {448.0}


def test_scales_may_lie_by_columns() -> None:
    rows = torch.stack((torch.ones(32), torch.full((32,), 2.0)))
    _, scales = by_groups(rows, scales=torch.zeros(2, 2).T)
    torch.testing.assert_close(scales * 448, torch.tensor([[1.0, 1.0], [2.0, 2.0]]))


def test_int8_cuts_off_what_is_behind_the_point() -> None:
    rows = torch.zeros(1, 16)
    rows[0, :3] = torch.tensor([127.0, 2.75, -2.75])
    out, scales = by_groups(rows, dtype=torch.int8)
    assert out[0, :4].tolist() == [127.0, 2.0, -2.0, 0.0]
    torch.testing.assert_close(scales, torch.ones(1, 1))


def test_a_group_of_zeros_has_the_least_scale() -> None:
    out, scales = by_groups(torch.zeros(1, 16))
    assert not out.any()
    torch.testing.assert_close(scales * 448, torch.full((1, 1), 1e-10))


@pytest.mark.parametrize("quantise", [by_groups, by_rows])
def test_nan_is_the_largest_number_and_has_no_say_in_the_scale(quantise: Any) -> None:
    rows = torch.ones(1, 16)
    rows[0, 5] = torch.nan
    out, scales = quantise(rows)
    torch.testing.assert_close(scales * 448, torch.ones(1, 1))
    assert set(out.flatten().tolist()) == {448.0}


def test_each_row_has_the_scale_of_its_largest_number() -> None:
    rows = torch.ones(3, 16)
    rows[1], rows[2, 0] = 8.0, -2.0
    out, scales = by_rows(rows)
    torch.testing.assert_close(scales * 448, torch.tensor([[1.0], [8.0], [2.0]]))
    assert out[2, :2].tolist() == [-448.0, 224.0]


def test_one_scale_is_taken_as_it_is_or_found_among_all() -> None:
    numbers = torch.tensor([1.0, -2.0, 0.5, 7.0])
    out, scale = quantised(row_quant.per_tensor_quant_fp8, numbers, torch.full((1,), 0.5), True)
    assert out.tolist() == [2.0, -4.0, 1.0, 14.0]
    out, scale = quantised(row_quant.per_tensor_quant_fp8, numbers, torch.zeros(1), False)
    torch.testing.assert_close(scale * 448, torch.full((1,), 7.0))
    assert out.tolist() == [64.0, -128.0, 32.0, 448.0]


def test_no_group_launches_nothing() -> None:
    assert by_groups(torch.zeros(0, 16))[0].shape == (0, 16)


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"scales": torch.zeros(2, 1)}, r"output_s must be \[2, 2\]"),
        ({"scales": torch.zeros(2, 2).half()}, "output_s must be float32"),
        ({"group": 24}, "columns must be a multiple of 24"),
        ({"out": torch.zeros(2, 32)}, "output_q must be float8_e4m3fn or int8"),
        ({"rows": torch.zeros(2, 36).half()[:, :32]}, "rows must be 32B-aligned"),
        ({"rows": torch.zeros(2, 32).to(FP8)}, "input must be float32 or"),
    ],
)
def test_what_the_host_code_of_groups_refuses_is_refused(
    changed: dict[str, Any], said: str
) -> None:
    with pytest.raises(KernelRefused, match=said):
        by_groups(**{"rows": torch.zeros(2, 32), **changed})


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"rows": torch.zeros(0, 16)}, "num_tokens must be positive"),
        ({"rows": torch.zeros(2, 6)}, "hidden_dim must be divisible by 4"),
        ({"rows": torch.zeros(16, 2).T}, "input must be contiguous"),
        ({"scales": torch.zeros(2)}, r"output_s must be \[2, 1\]"),
        (
            {"out": torch.zeros(1, 16).to(FP8), "scales": torch.zeros(1, 1)},
            "output buffers must have at least 2 rows",
        ),
    ],
)
def test_what_the_host_code_of_rows_refuses_is_refused(changed: dict[str, Any], said: str) -> None:
    with pytest.raises(KernelRefused, match=said):
        by_rows(**{"rows": torch.zeros(2, 16), **changed})


def test_one_scale_is_one_number() -> None:
    numbers, scales = torch.zeros(4), torch.zeros(2)
    with pytest.raises(KernelRefused, match=r"output_s must be \[1\]"):
        quantised(row_quant.per_tensor_quant_fp8, numbers, scales, True)
