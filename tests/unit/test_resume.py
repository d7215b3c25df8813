"""A killed run goes on where it was, and nothing it had seen is lost."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import Counter
from contextlib import nullcontext
from pathlib import Path

import msgspec
import pytest

from fuzzgraph.campaign import RunFolder, run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.campaign.resume import load_run_state, resumed_spec
from fuzzgraph.case import Case, digest
from fuzzgraph.corpus import Entry, Loaded
from fuzzgraph.errors import OutOfTime, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.open_target import Opened
from fuzzgraph.run.events import CaseRun, Event, Progress, RunSummary, Setup, finding_id
from fuzzgraph.run.spec import Budget, RunSpec
from fuzzgraph.run.state import RunState
from tests.fakes import FakeRunner, FakeTarget, case, finding, paged

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_kills_at_any_instant_lose_no_finding_and_leave_no_half_file(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.unit.killing", str(tmp_path / "run"), "1", "20"]
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert told["kills"] >= 16
    assert told["half_written"] == []
    assert told["found"] == ["corpus only", "long", "paged", "wide"], "each once, none lost"
    assert told["reason"] == "examples"
    assert told["cases"] >= 84


class Killed(BaseException):
    """Stands for a kill: nothing in FuzzGraph catches it."""


def run(
    folder: Path, runner: FakeRunner, *, killed_at: int = 0, resume: bool = False
) -> RunSummary:
    """A run of 60 cases that is killed before a case, or goes on."""

    def bugs(one: Case) -> tuple[Finding, ...]:
        if killed_at and len(runner.ran) == killed_at:
            raise Killed
        return paged(one)

    runner.bugs = bugs
    opened = Opened(Setup(), FakeTarget(), runner, lambda: None)
    state = load_run_state(folder) if resume else None
    plan = (
        resumed_spec(state, folder)
        if state
        else RunSpec(out=str(folder), budget=Budget(None, 60), seed=2)
    )
    return run_campaign(plan, events.append, opened=opened, export=no_export, state=state)


events: list[Event] = []


@pytest.fixture(autouse=True)
def no_events() -> None:
    events.clear()


def test_the_case_at_hand_is_run_again_first(tmp_path: Path) -> None:
    first, second = FakeRunner(), FakeRunner()
    with pytest.raises(Killed):
        run(tmp_path, first, killed_at=30)
    run(tmp_path, second, resume=True)
    assert second.ran[0] == first.ran[-1]


def searched(folder: Path, *kills: int, examples: int = 250) -> list[str]:
    """The digests of the cases that a run has run, killed so often and each time resumed; a case
    within which it was killed counts where it came back."""
    ran: list[str] = []
    folder.mkdir(exist_ok=True)
    state: RunState | None = None
    for kill in (*kills, 0):
        runner = FakeRunner()

        def killing(one: Case, runner: FakeRunner = runner, kill: int = kill) -> tuple[()]:
            if kill and len(runner.ran) == kill:
                raise Killed
            return ()

        runner.bugs = killing
        opened = Opened(Setup(), FakeTarget(), runner, lambda: None)
        plan = RunSpec(out=str(folder), budget=Budget(None, examples), seed=2)
        plan = msgspec.structs.replace(
            resumed_spec(state, folder) if state else plan, progress_seconds=0.0
        )
        with pytest.raises(Killed) if kill else nullcontext():
            run_campaign(
                plan, events.append, opened=opened, export=no_export, state=state, seeds=SEEDS
            )
        ran += [digest(one) for one in runner.ran[: -1 if kill else None]]
        state = load_run_state(folder) if kill else None
    return ran


SEEDS = Loaded([Entry(Path(f"{size}.json"), case(size), digest(case(size))) for size in (1, 2, 3)])


@pytest.fixture(scope="module")
def unbroken(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return searched(tmp_path_factory.mktemp("unbroken"))


@pytest.mark.parametrize(
    "kills",
    [(4,), (30,), (103,), (180,), (30, 1), (30, 2), (30, 40), (120, 1, 1, 50), (2,), (2, 2)],
    ids=lambda kills: "killed in case " + ", ".join(map(str, kills)),
)
def test_a_killed_run_runs_the_examples_of_the_unbroken_one(
    kills: tuple[int, ...], unbroken: list[str], tmp_path: Path
) -> None:
    assert len(unbroken) == 253
    assert Counter(searched(tmp_path / "killed", *kills)) == Counter(unbroken)
    assert load_run_state(tmp_path / "killed").progress.cases == 253


def test_a_run_that_has_ended_is_resumed_with_more_time_only(tmp_path: Path) -> None:
    run(tmp_path, FakeRunner())
    state = load_run_state(tmp_path)
    with pytest.raises(UsageError, match="the run is complete"):
        resumed_spec(state, tmp_path)
    assert resumed_spec(state, tmp_path, seconds=3600.0).budget.seconds == 3600.0


def test_a_run_that_has_ended_is_resumed_for_what_it_had_no_time_for(tmp_path: Path) -> None:
    class Late(FakeRunner):
        def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
            raise OutOfTime("the time is up")

    first = run(tmp_path, Late())
    (seen,) = first.findings
    assert (seen.left, seen.finding.confirmed) == (("confirm", "shrink"), "")
    again = FakeRunner()
    summary = run(tmp_path, again, resume=True)
    (done,) = summary.findings
    assert (done.id, done.left, done.finding.confirmed) == (seen.id, (), "3/3")
    assert len(done.case.steps) == 2
    assert (summary.cases, summary.exit_code) == (60, 1), "nothing is searched any more"
    assert (summary.reason, summary.seconds) == (first.reason, first.seconds)
    with pytest.raises(UsageError, match="the run is complete"):
        resumed_spec(load_run_state(tmp_path), tmp_path)


def test_a_corpus_case_that_came_back_is_not_run_again(tmp_path: Path) -> None:
    run(tmp_path, FakeRunner())
    events.append(
        CaseRun(index=0, digest="x", source="corpus", outcome="clean", steps=1, seconds=0)
    )
    state = load_run_state(tmp_path)
    state.apply(events[-1])
    assert state.corpus_ran == {"x"}


def test_a_claim_without_a_word_in_the_log_is_free_again(tmp_path: Path) -> None:
    run(tmp_path, FakeRunner())
    folder = RunFolder(tmp_path)
    name = finding_id(finding(buffer="other").key)
    assert folder.claim(name)
    load_run_state(tmp_path)
    assert folder.claim(name)


def test_two_runs_in_one_folder_are_refused(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path).lock(),
        pytest.raises(UsageError, match="another run is using this folder"),
    ):
        run(tmp_path, FakeRunner())


def test_a_folder_without_a_run_cannot_be_resumed(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"holds no events\.jsonl"):
        load_run_state(tmp_path)
    with pytest.raises(UsageError, match=r"holds no events-1\.jsonl"):
        load_run_state(tmp_path, 1, 2)


def test_workers_killed_before_and_after_a_resume_are_counted_together(tmp_path: Path) -> None:
    def finished(state: RunState | None) -> RunSummary:
        opened = Opened(Setup(), FakeTarget(), FakeRunner(), lambda: None, killed=lambda: 2)
        plan = RunSpec(out=str(tmp_path), budget=Budget(None, 60 if state is None else 90), seed=2)
        return run_campaign(plan, events.append, opened=opened, export=no_export, state=state)

    assert finished(None).killed == 2
    assert finished(load_run_state(tmp_path)).killed == 4
    assert [event.killed for event in events if isinstance(event, Progress)][-1] == 4


def test_a_full_disk_ends_the_run_with_what_was_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(path: Path, content: bytes) -> None:
        raise UsageError(
            f"corpus folder {path.parent}: cannot be written (No space left on device)"
        )

    def bugs(one: Case) -> tuple[Finding, ...]:
        if len(runner.ran) == 150:
            monkeypatch.setattr("fuzzgraph.corpus.write_atomically", full)
            monkeypatch.setattr(RunFolder, "set_out", lambda self, one: full(self.running, b""))
        return paged(one)

    runner = FakeRunner(bugs)
    opened = Opened(Setup(), FakeTarget(), runner, lambda: None)
    plan = RunSpec(out=str(tmp_path), budget=Budget(None, 400), seed=2)
    summary = run_campaign(plan, events.append, opened=opened, export=no_export)
    assert (summary.reason, summary.exit_code, len(summary.findings)) == ("failed", 3, 1)
    assert "No space left on device" in summary.error
