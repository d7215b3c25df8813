"""A child's answer, its death, its own error and its limits."""

from __future__ import annotations

import os
import signal
import sys
from pathlib import Path

import pytest

from fuzzgraph.errors import TargetFailed
from fuzzgraph.finding import Stage
from fuzzgraph.mutants import fork
from fuzzgraph.mutants.fork import Ended, Fork
from fuzzgraph.mutants.messages import FromChild, Quiet, Refused
from fuzzgraph.worker.limits import Limits
from fuzzgraph.worker.stages import Enter

pytestmark = [
    pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork"),
    # pytest itself may have threads; the children here take no lock.
    pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning"),
]


def quiet(enter: Enter) -> FromChild:
    enter("capture", -1)
    print("the engine prints")
    return Quiet(cases=3, tried=3, seconds=1.0, findings={}, shown_by={})


def killed(enter: Enter) -> FromChild:
    enter("prepare", 2)
    os.kill(os.getpid(), signal.SIGTERM)
    raise AssertionError


def left(enter: Enter) -> FromChild:
    enter("replay", 0)
    os._exit(7)


def early(enter: Enter) -> FromChild:
    enter("capture", -1)
    os._exit(7)


def refused(enter: Enter) -> FromChild:
    raise TargetFailed("the stand-in has no stream")


def broken(enter: Enter) -> FromChild:
    raise ZeroDivisionError("ours")


def hanging(enter: Enter) -> FromChild:
    enter("prepare", 1)
    signal.pause()
    raise AssertionError


@pytest.fixture
def log(tmp_path: Path) -> int:
    return os.open(tmp_path / "log", os.O_WRONLY | os.O_CREAT)


def test_an_answer_comes_back_and_what_is_printed_goes_to_the_log(tmp_path: Path, log: int) -> None:
    assert Fork(quiet, log).answer() == Quiet(
        cases=3, tried=3, seconds=1.0, findings={}, shown_by={}
    )
    assert (tmp_path / "log").read_text() in ("", "the engine prints\n")


@pytest.mark.parametrize(
    ("work", "how", "stage", "started"),
    [
        (killed, "the engine's process ended by SIGTERM", "prepare", True),
        (left, "the engine's process left with exit code 7", "replay", True),
        (early, "the engine's process left with exit code 7", "capture", False),
    ],
)
def test_a_death_says_how_and_where(
    log: int, work: fork.Work, how: str, stage: Stage, started: bool
) -> None:
    with pytest.raises(Ended) as dead:
        Fork(work, log).answer()
    assert (dead.value.how, dead.value.stage, dead.value.started) == (how, stage, started)


def test_an_error_of_ours_is_no_death(log: int) -> None:
    assert Fork(refused, log).answer() == Refused(
        kind="TargetFailed", message="the stand-in has no stream"
    )
    answer = Fork(broken, log).answer()
    assert answer == Refused(kind="HarnessFailed", message="ZeroDivisionError: ours")


def test_a_hang_is_ended_by_the_limit_of_its_stage(
    log: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fork, "Limits", lambda: Limits(stage_seconds={"prepare": 0.05}))
    with pytest.raises(Ended) as dead:
        Fork(hanging, log).answer()
    assert (dead.value.kind, dead.value.stage) == ("hang", "prepare")


def test_the_parent_goes_on_with_its_own_streams(
    log: int, capfd: pytest.CaptureFixture[str]
) -> None:
    Fork(quiet, log).answer()
    print("here", file=sys.stderr)
    assert capfd.readouterr().err == "here\n"
