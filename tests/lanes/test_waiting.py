"""Programs that wait for later ones come to their end, and those that wait for ever are told."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.lanes import lanes
from tests.lanes.kernels import waiting


@pytest.mark.parametrize("count", [2, 5, 33])
def test_a_program_waits_for_what_later_ones_leave(count: int) -> None:
    values = torch.arange(1, count + 1, dtype=torch.int32)
    partial, locks = torch.zeros_like(values), torch.zeros_like(values)
    out = torch.zeros(1, dtype=torch.int32)
    with lanes() as report:
        waiting.sums_of_later_ones[(count,)](values, partial, locks, out, COUNT=count)
    assert out.tolist() == [int(values.sum())]
    assert partial.tolist() == values.flip(0).cumsum(0).flip(0).tolist()
    assert (report.races, dict(report.fallbacks)) == ([], {})


def test_a_lock_that_an_earlier_launch_left_lets_programs_go_on_too_early() -> None:
    values = torch.arange(1, 6, dtype=torch.int32)
    partial, locks = torch.zeros_like(values), torch.zeros_like(values)
    out = torch.zeros(1, dtype=torch.int32)
    with lanes():
        waiting.sums_of_later_ones[(5,)](values, partial, locks, out, COUNT=5)
        waiting.sums_of_later_ones[(5,)](values + 100, partial, locks, out, COUNT=5)
    assert out.tolist() != [int((values + 100).sum())]


def test_programs_that_wait_for_each_other_are_told_instead_of_waited_for() -> None:
    locks = torch.zeros(2, dtype=torch.int32)
    with lanes(), pytest.raises(Exception, match="two_that_wait: programs wait for"):
        waiting.two_that_wait[(2,)](locks)


def test_a_lock_that_is_taken_again_and_again_is_no_waiting() -> None:
    counts, out = torch.zeros(1, dtype=torch.int32), torch.zeros(1, dtype=torch.int32)
    with lanes() as report:
        waiting.asks_often[(3,)](counts, out, TIMES=100)
    assert out.tolist() == [300]
    assert not any("wait" in reason for _, reason in report.fallbacks)
