"""Merges of partial attention, against attention over all keys."""

from __future__ import annotations

import math

import pytest
import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.merge import merge_state, merge_state_v2
from tests.kernel_models.dense import dense_attention


def _parts(*counts: int) -> tuple[list[tuple[torch.Tensor, torch.Tensor]], torch.Tensor]:
    """(output and natural logarithm [T, H] over each part's keys, output over all of them)."""
    torch.manual_seed(2)
    q = torch.randn(3, 4, 8)
    keys, values = torch.randn(sum(counts), 2, 8), torch.randn(sum(counts), 2, 8)
    found, first = [], 0
    for count in counts:
        part = slice(first, first + count)
        seen = torch.ones(3, count, dtype=torch.bool)
        out, lse = dense_attention(q, keys[part], values[part], seen, scale=0.5)
        found.append((out.float(), lse.T.contiguous().float()))
        first += count
    seen = torch.ones(3, first, dtype=torch.bool)
    return found, dense_attention(q, keys, values, seen, scale=0.5)[0]


@pytest.mark.parametrize("counts", [(5, 3), (1, 6), (4, 0)])
def test_two_parts_make_the_whole(counts: tuple[int, int]) -> None:
    (one, two), want = _parts(*counts)
    out, sums = merge_state_v2(*one, *two)
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)
    total = torch.logaddexp(one[1], two[1])
    torch.testing.assert_close(sums, total)


def test_flashinfer_takes_logarithms_to_base_2() -> None:
    (one, two), want = _parts(5, 3)
    base_2 = [lse / math.log(2) for _, lse in (one, two)]
    out, sums = merge_state(one[0], base_2[0], two[0], base_2[1])
    torch.testing.assert_close(out.double(), want, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(sums * math.log(2), torch.logaddexp(one[1], two[1]))


def test_a_part_of_plus_infinity_counts_as_one_without_keys() -> None:
    (one, _), want = _parts(5, 3)
    none = torch.full_like(one[1], math.inf)
    out, _ = merge_state_v2(*one, torch.ones_like(one[0]), none)
    torch.testing.assert_close(out, one[0])


def test_two_parts_without_keys_are_nan() -> None:
    (one, _), _ = _parts(5, 3)
    none = torch.full_like(one[1], -math.inf)
    out, _ = merge_state_v2(one[0], none, one[0], none)
    assert out.isnan().all()


def test_logarithms_that_are_not_transposed_are_refused() -> None:
    (one, two), _ = _parts(5, 3)
    with pytest.raises(KernelRefused, match=r"s_a must have shape \[3, 4\]; got \[4, 3\]"):
        merge_state_v2(one[0], one[1].T.contiguous(), two[0], two[1])
    with pytest.raises(KernelRefused, match="s_a must be contiguous"):
        merge_state_v2(one[0], one[1].T.contiguous().T, two[0], two[1])
