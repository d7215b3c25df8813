"""Counting what is distinct, in constant memory."""

from __future__ import annotations

import pytest

from fuzzgraph.coverage import Coverage, CoverageMap
from fuzzgraph.distinct import Distinct


def counted(values: range) -> Distinct:
    counter = Distinct()
    for value in values:
        counter.add(str(value).encode())
    return counter


@pytest.mark.parametrize("count", [1, 50, 1000, 9000, 60000])
def test_a_count_is_near_the_truth(count: int) -> None:
    assert int(counted(range(count))) == pytest.approx(count, rel=0.04)


def test_what_comes_again_is_not_counted_again() -> None:
    counter = counted(range(500))
    before = int(counter)
    for value in range(500):
        counter.add(str(value).encode())
    assert int(counter) == before


def test_two_counters_merge_into_that_of_both() -> None:
    left, right = counted(range(3000)), counted(range(2000, 5000))
    left.merge(right.record())
    assert left.record() == counted(range(5000)).record()


@pytest.mark.parametrize("text", ["", "no base64", "QUJD"])
def test_what_is_no_record_is_left_out(text: str) -> None:
    counter = counted(range(10))
    counter.merge(text)
    assert int(counter) == 10


def test_a_state_is_a_set_of_dimension_values() -> None:
    cover = CoverageMap()
    for names in (["a", "b"], ["b", "a"], ["a"], ["a", "b", "c"]):
        cover.add(names)
    assert cover.record().states == 3


def test_shards_add_up_to_what_they_saw_together() -> None:
    first, second = CoverageMap(), CoverageMap()
    first.add(["a", "b"])
    first.add(["a"])
    second.add(["a"])
    second.add(["c"])
    first.absorb(second.record())
    assert first.record().states == 3
    assert Coverage().states == 0
