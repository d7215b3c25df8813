"""Which mutants are run, and what becomes of one whose process ends."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

import pytest

from fuzzgraph.mutants.drawing import Candidate
from fuzzgraph.mutants.fork import Fork
from fuzzgraph.mutants.messages import FromChild, Judged
from fuzzgraph.mutants.records import Result
from fuzzgraph.mutants.source import Edit
from fuzzgraph.mutants.trials import run_all
from fuzzgraph.worker.stages import Enter
from tests.unit.mutants.records import mutant, result

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]

ORDER = [Candidate(mutant(name), "engine.py", Edit(0, 0, "")) for name in "abcdef"]
Ends = Callable[[Enter], None]


@pytest.fixture
def silence() -> int:
    return os.open(os.devnull, os.O_WRONLY)


def ran(
    silence: int, ends: Ends | None = None, *, jobs: int = 1, wanted: int = 3, done: str = ""
) -> list[Result]:
    """Results where `b` does not start and `c` is no change at all."""

    def start(candidate: Candidate) -> Fork | Result | None:
        name = candidate.mutant.id
        if name == "c":
            return None

        def work(enter: Enter) -> FromChild:
            if ends is not None:
                ends(enter)
            return Judged(result=result(name, "does_not_start" if name == "b" else "survived"))

        return Fork(work, silence)

    told: list[Result] = []
    earlier = {name: result(name, "does_not_start" if name == "b" else "found") for name in done}
    run_all(ORDER, start, told.append, jobs=jobs, wanted=wanted, done=earlier)
    return told


def names(results: list[Result]) -> str:
    return "".join(sorted(one.mutant.id for one in results))


@pytest.mark.parametrize("jobs", [1, 2, 4])
def test_any_number_of_jobs_runs_the_same_mutants(silence: int, jobs: int) -> None:
    assert names(ran(silence, jobs=jobs)) == "abde"


def test_what_an_interrupted_run_has_done_is_not_run_again(silence: int) -> None:
    assert names(ran(silence, done="ab")) == "de"
    assert ran(silence, done="abde") == []


def test_it_ends_where_there_are_no_more(silence: int) -> None:
    assert names(ran(silence, wanted=40)) == "abdef"


def leave_in_a_step(enter: Enter) -> None:
    enter("replay", 0)
    os._exit(3)


def leave_in_a_later_capture(enter: Enter) -> None:
    enter("replay", 0)
    enter("capture", -1)
    os._exit(3)


def leave_before_the_first_step(enter: Enter) -> None:
    enter("open", -1)
    os._exit(3)


def be_killed(enter: Enter) -> None:
    enter("replay", 0)
    os.kill(os.getpid(), signal.SIGKILL)


@pytest.mark.parametrize(
    ("ends", "outcome", "buffer"),
    [
        (leave_in_a_step, "found", "process: exit in replay"),
        (leave_in_a_later_capture, "found", "process: exit in capture"),
        (leave_before_the_first_step, "does_not_start", ""),
        (be_killed, "failed", ""),
    ],
)
def test_a_process_that_ends(silence: int, ends: Ends, outcome: str, buffer: str) -> None:
    first = ran(silence, ends, wanted=1)[0]
    assert (first.outcome, first.buffer) == (outcome, buffer)


def test_an_error_of_our_own_finds_nothing(silence: int) -> None:
    def broken(enter: Enter) -> None:
        raise ZeroDivisionError("ours")

    (first,) = ran(silence, broken, wanted=1)
    assert (first.outcome, first.said) == ("failed", "HarnessFailed: ZeroDivisionError: ours")
