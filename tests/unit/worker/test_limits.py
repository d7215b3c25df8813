"""When a child counts as hanging, on a clock that the test turns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzzgraph.worker.limits import Limits, Watch
from fuzzgraph.worker.stages import StageFile


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


LIMITS = Limits(stage_seconds={"open": 60.0})


@pytest.mark.parametrize(("opened_before", "words"), [(False, None), (True, "was in stage 'open'")])
def test_imports_have_the_time_of_the_opening_and_not_that_of_a_stage(
    tmp_path: Path, opened_before: bool, words: str | None
) -> None:
    stages, clock = StageFile(tmp_path / "stage"), Clock()
    if opened_before:
        stages.enter("open")
    watch = Watch(LIMITS, os.getpid(), tmp_path / "stage", 300.0, clock)
    assert watch.excess() is None
    clock.now = 61.0
    excess = watch.excess()
    assert (words is None) == (excess is None)
    assert excess is None or words in excess.words  # type: ignore[operator]


def test_imports_that_never_end_are_a_hang(tmp_path: Path) -> None:
    StageFile(tmp_path / "stage")
    clock = Clock()
    watch = Watch(LIMITS, os.getpid(), tmp_path / "stage", 300.0, clock)
    clock.now = 301.0
    excess = watch.excess()
    assert excess is not None
    assert "gave no answer in 300 s" in excess.words
