"""When a child counts as hanging, on a clock that the test turns."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from fuzzgraph.worker.limits import Limits, Watch, queued
from fuzzgraph.worker.messages import Entered


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def never(pid: int) -> float:
    return 0.0


SCHEDULED = Path("/proc/self/schedstat")
LIMITS = Limits(stage_seconds={"open": 60.0})


def test_stages_in_which_a_device_compiles_kernels_have_the_time_for_it() -> None:
    usual, there = Limits.on("cpu"), Limits.on("cuda")
    assert usual == Limits()
    longer = {
        stage
        for stage, seconds in there.stage_seconds.items()
        if seconds > usual.stage_seconds[stage]
    }
    assert longer == {"warmup", "capture", "eager"}
    assert there.case_seconds > max(there.stage_seconds.values())


@pytest.mark.parametrize(("opened_before", "words"), [(False, None), (True, "was in stage 'open'")])
def test_imports_have_the_time_of_the_opening_and_not_that_of_a_stage(
    opened_before: bool, words: str | None
) -> None:
    clock = Clock()
    watch = Watch(LIMITS, os.getpid(), 300.0, clock, never)
    if opened_before:
        watch.enter(Entered())
    assert watch.exceeded() is None
    clock.now = 61.0
    excess = watch.exceeded()
    assert (words is None) == (excess is None)
    assert excess is None or words in excess.words  # type: ignore[operator]


def test_imports_that_never_end_are_a_hang() -> None:
    clock = Clock()
    watch = Watch(LIMITS, os.getpid(), 300.0, clock, never)
    clock.now = 301.0
    excess = watch.exceeded()
    assert excess is not None
    assert "gave no answer in 300 s" in excess.words


def test_the_time_in_which_other_work_had_the_processors_does_not_count() -> None:
    clock, waited = Clock(), Clock()
    watch = Watch(LIMITS, os.getpid(), 300.0, clock, lambda pid: waited())
    watch.enter(Entered())
    clock.now, waited.now = 400.0, 350.0
    assert watch.exceeded() is None
    clock.now = 411.0
    excess = watch.exceeded()
    assert excess is not None
    assert "was in stage 'open' for more than 60 s" in excess.words


@pytest.mark.skipif(not SCHEDULED.exists(), reason="this kernel does not count it")
def test_a_process_waited_as_long_as_the_kernel_says_in_nanoseconds() -> None:
    before = int(SCHEDULED.read_text().split()[1])
    waited = queued(os.getpid())
    after = int(SCHEDULED.read_text().split()[1])
    assert before <= round(waited * 1e9) <= after


def test_a_process_that_is_gone_waits_for_nothing() -> None:
    assert queued(2**22 + 1) == 0.0
