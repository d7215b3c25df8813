"""Products of grouped rows, against products of each group."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.grouped_gemm import m_grouped_bf16_gemm_nt_masked
from fuzzgraph.kernel_models.launch import routed
from tests.kernel_models.test_low_latency import _Report


def _numbers(*shape: int) -> torch.Tensor:
    drawn = torch.randint(-3, 4, shape, generator=torch.Generator().manual_seed(1))
    return drawn.bfloat16()


def test_the_first_rows_of_each_group_are_multiplied_and_no_others() -> None:
    a, b, d = _numbers(3, 4, 8), _numbers(3, 5, 8), torch.full((3, 4, 5), torch.nan).bfloat16()
    a[0, 2:] = torch.nan
    m_grouped_bf16_gemm_nt_masked(a, b, d, torch.tensor([2, 0, 4], dtype=torch.int32), 2)
    for group, rows in enumerate((2, 0, 4)):
        wanted = a[group, :rows].double() @ b[group].double().T
        assert d[group, :rows].double().equal(wanted)
        assert d[group, rows:].isnan().all()


def test_more_rows_than_there_is_room_for_are_a_misuse() -> None:
    report = _Report()
    tensors = _numbers(1, 2, 8), _numbers(1, 5, 8), torch.zeros(1, 2, 5).bfloat16()
    with routed(report.run), pytest.raises(AssertionError, match="read"):
        m_grouped_bf16_gemm_nt_masked(*tensors, torch.tensor([3], dtype=torch.int32), 2)
    assert report.rules == [("masked_m", "3 of group 0")]


@pytest.mark.parametrize(
    ("masked", "expected", "rule"),
    [
        (torch.zeros(1), 1, "masked_m must be int32"),
        (torch.zeros(2, dtype=torch.int32), 1, r"masked_m must be \[1\]"),
        (torch.zeros(1, dtype=torch.int32), 0, "expected_m must be positive"),
    ],
)
def test_counts_of_another_kind_are_refused(masked: torch.Tensor, expected: int, rule: str) -> None:
    tensors = _numbers(1, 2, 8), _numbers(1, 5, 8), torch.zeros(1, 2, 5).bfloat16()
    with pytest.raises(KernelRefused, match=rule):
        m_grouped_bf16_gemm_nt_masked(*tensors, masked, expected)
