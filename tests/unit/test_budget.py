"""The budget of time holds, whatever is found and however long that takes to follow."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fuzzgraph.campaign import RunFolder
from fuzzgraph.campaign.budget import Allowance
from fuzzgraph.campaign.triage import Say
from fuzzgraph.case import Case, digest, load_case
from fuzzgraph.errors import OutOfTime
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import Export, FindingNew, ReportedFinding
from tests.fakes import FakeRunner, FakeVerdict, case, finding, paged
from tests.unit.campaigns import Bugs, CampaignRun, Clock, Slow, endless, many_bugs


def test_the_time_budget_ends_the_search(tmp_path: Path) -> None:
    run = CampaignRun(tmp_path, FakeRunner(), seconds=10.0, examples=None, clock=Clock(0.01))
    summary = run.run()
    assert summary.reason == "time"
    assert 10.0 <= summary.total_seconds < 10.5


def test_shrinking_ends_at_its_limit(tmp_path: Path) -> None:
    clock = Clock(0.01)
    run = CampaignRun(
        tmp_path, FakeRunner(paged), minimise=endless, shrink_seconds=3.0, findings=1, clock=clock
    )
    (reported,) = run.run().findings
    assert 3.0 <= reported.shrink_seconds < 3.2


def test_shrinking_leaves_most_of_the_time_to_the_search(tmp_path: Path) -> None:
    clock = Clock()
    run = CampaignRun(tmp_path, Slow(many_bugs, clock), clock=clock, seconds=300.0, examples=None)
    summary = run.run()
    assert summary.cases > 100
    assert len(summary.findings) == 10
    assert all(one.finding.confirmed == "3/3" for one in summary.findings)


def test_what_is_left_to_shrink_keeps_the_time_budget_in_sight(tmp_path: Path) -> None:
    clock = Clock()
    run = CampaignRun(tmp_path, Slow(many_bugs, clock), clock=clock, seconds=100.0, examples=None)
    summary = run.run()
    assert summary.seconds <= 100.0
    assert summary.total_seconds <= 100.0 + run.plan.shrink_seconds + 3 * len(summary.findings)


def test_what_showed_only_beside_a_finding_is_told_with_it_when_time_is_up(
    tmp_path: Path,
) -> None:
    def two_at_once(one: Case) -> tuple[Finding, ...]:
        beside = (finding(buffer="beside"),) if one.seed else ()
        return (finding(), *beside)

    def to_seed_0(one: Case, still_fails: Callable[[Case], bool]) -> Case:
        return endless(msgspec.structs.replace(one, seed=0), still_fails)

    clock = Clock()
    run = CampaignRun(
        tmp_path,
        Slow(two_at_once, clock),
        clock=clock,
        corpus=[case(2, seed=3)],
        seconds=10.0,
        export_seconds=0.0,
        minimise=to_seed_0,
    )
    (reported,) = run.run().findings
    assert reported.case.seed == 0
    assert [other.buffer for other in reported.also] == ["beside"]


class Exporter:
    """Executing a script takes a hundred seconds, or what it is given."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.given: list[float] = []

    def __call__(
        self, reported: ReportedFinding, folder: RunFolder, allowance: Allowance, say: Say
    ) -> tuple[Export, ...]:
        seconds = allowance.seconds
        self.given.append(seconds)
        self.clock.now += min(seconds, 100.0)
        return (Export(kind="script", path="x", rate="3/3" if seconds >= 100.0 else ""),)


def test_repros_are_executed_as_long_as_there_is_time_for_it(tmp_path: Path) -> None:
    clock = Clock()
    export = Exporter(clock)
    run = CampaignRun(tmp_path, FakeRunner(many_bugs), clock=clock, export=export, examples=100)
    found = run.run().findings
    assert export.given == [240.0, 140.0, 40.0] + [0.0] * 7
    assert [one.left for one in found] == [()] * 2 + [("export",)] * 8


class Stuck(Slow):
    """Every run of a case takes its time, until it is cut off."""

    def __init__(self, bugs: Bugs, clock: Clock, seconds: float) -> None:
        super().__init__(bugs, clock)
        self.seconds = seconds
        self.last_moment = math.inf

    def cut_off(self, moment: float) -> None:
        self.last_moment = moment

    def spend(self) -> None:
        self.clock.now += self.seconds
        if self.clock.now > self.last_moment:
            self.clock.now = self.last_moment
            raise OutOfTime("the time is up")

    def run_case(self, case: Case) -> FakeVerdict:
        self.spend()
        return super().run_case(case)

    def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
        for _ in range(times):
            self.spend()
        return super().confirm(case, finding, times)


@pytest.mark.parametrize("seconds", [0.1, 2.0, 7.0, 31.0])
def test_the_end_of_the_budget_holds_whatever_is_left_to_do(tmp_path: Path, seconds: float) -> None:
    clock = Clock()
    runner = Stuck(many_bugs, clock, seconds)
    export = Exporter(clock)
    run = CampaignRun(
        tmp_path,
        runner,
        clock=clock,
        cut_off=runner.cut_off,
        export=export,
        seconds=300.0,
        examples=None,
    )
    summary = run.run()
    assert summary.total_seconds <= 300.0 * 1.02
    seen = {event.id for event in run.of(FindingNew)}
    assert seen == {one.id for one in summary.findings}
    assert len(export.given) == len(seen), "what is not executed is written"


def test_a_healthy_engine_is_searched_to_the_last_second(tmp_path: Path) -> None:
    clock = Clock()
    summary = CampaignRun(
        tmp_path, Slow(lambda one: (), clock), clock=clock, seconds=50.0, examples=None
    ).run()
    assert (summary.cases, summary.cut_off) == (50, "")


def test_a_case_that_is_cut_off_is_named_and_stays_on_disk(tmp_path: Path) -> None:
    clock = Clock()
    runner = Stuck(lambda one: (), clock, 35.0)
    run = CampaignRun(
        tmp_path, runner, clock=clock, cut_off=runner.cut_off, seconds=100.0, examples=None
    )
    summary = run.run()
    assert (summary.cases, summary.reason) == (2, "time")
    assert digest(load_case(tmp_path / "running.json")) == summary.cut_off


def test_what_there_was_no_time_for_is_named(tmp_path: Path) -> None:
    clock = Clock()
    runner = Stuck(many_bugs, clock, 9.0)
    run = CampaignRun(
        tmp_path, runner, clock=clock, cut_off=runner.cut_off, seconds=60.0, examples=None
    )
    found = run.run().findings
    assert {one.left for one in found} <= {(), ("shrink",), ("confirm", "shrink")}
    assert any(one.left for one in found)
    assert all(not one.flaky for one in found), "what was not tried is not flaky"


def test_a_bug_that_only_a_candidate_of_a_shrink_shows_is_a_finding_of_its_own(
    tmp_path: Path,
) -> None:
    def bugs(one: Case) -> tuple[Finding, ...]:
        found = paged(one)
        return found if len(one.steps) != 1 else (*found, finding(buffer="only when small"))

    runner = FakeRunner(bugs)
    big = case(2, 3, 2, page_size=16)
    summary = CampaignRun(tmp_path, runner, corpus=[big], examples=0).run()
    assert sorted(one.finding.buffer for one in summary.findings) == [
        "kv_indices",
        "only when small",
    ]
    assert all(one.finding.confirmed == "3/3" for one in summary.findings)
