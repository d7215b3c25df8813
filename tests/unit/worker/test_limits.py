"""When a child counts as hanging, on a clock that the test turns."""

from __future__ import annotations

import os

import pytest

from fuzzgraph.worker.limits import Limits, Watch
from fuzzgraph.worker.messages import Entered


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


LIMITS = Limits(stage_seconds={"open": 60.0})


@pytest.mark.parametrize(("opened_before", "words"), [(False, None), (True, "was in stage 'open'")])
def test_imports_have_the_time_of_the_opening_and_not_that_of_a_stage(
    opened_before: bool, words: str | None
) -> None:
    clock = Clock()
    watch = Watch(LIMITS, os.getpid(), 300.0, clock)
    if opened_before:
        watch.enter(Entered())
    assert watch.exceeded() is None
    clock.now = 61.0
    excess = watch.exceeded()
    assert (words is None) == (excess is None)
    assert excess is None or words in excess.words  # type: ignore[operator]


def test_imports_that_never_end_are_a_hang() -> None:
    clock = Clock()
    watch = Watch(LIMITS, os.getpid(), 300.0, clock)
    clock.now = 301.0
    excess = watch.exceeded()
    assert excess is not None
    assert "gave no answer in 300 s" in excess.words
