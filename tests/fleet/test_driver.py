"""The driver and its shards: one run in one folder, whatever is lost on the way."""

from __future__ import annotations

import itertools
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.campaign import Opened
from fuzzgraph.case import Case, load_case
from fuzzgraph.corpus import Entry, Loaded
from fuzzgraph.errors import UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.fleet.driver import FleetFailed
from fuzzgraph.fleet.messages import ShardSpec
from fuzzgraph.fleet.run import run_fleet
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import Emit, Event, FindingNew, RunSummary, Setup
from fuzzgraph.run.spec import Budget, RunSpec
from tests.fakes import FakeRunner, FakeTarget, FakeVerdict, case, finding, no_exporting, paged
from tests.fleet.members import Killed, SlowMember, ThreadCluster

Bugs = Callable[[Case], tuple[Finding, ...]]


class Fleet:
    """A fleet of threads on a target without an engine."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch, bugs: Bugs = paged) -> None:
        self.out = folder / "run"
        self.out.mkdir()
        self.machines = folder / "machines"
        self.machines.mkdir()
        self.events: list[Event] = []
        self.emit: Emit = self.events.append
        self.cluster = ThreadCluster(2)
        self.runner: Callable[[], FakeRunner] = lambda: FakeRunner(bugs)
        monkeypatch.setattr("tempfile.tempdir", str(self.machines))
        monkeypatch.setattr("fuzzgraph.campaign.run.open_setup", self._open)
        monkeypatch.setattr("fuzzgraph.campaign.run.Exporting", no_exporting)
        monkeypatch.setattr("fuzzgraph.fleet.driver._PAUSE", 0.01)

    def _open(self, setup: Setup) -> Opened:
        return Opened(setup, FakeTarget(), self.runner(), lambda: None)

    def run(self, examples: int = 120, **rest: Any) -> RunSummary:
        @contextmanager
        def join(shards: int | None) -> Iterator[ThreadCluster]:
            yield self.cluster

        budget = Budget(rest.pop("seconds", None), examples)
        plan = RunSpec(out=str(self.out), seed=3, budget=budget, **rest.pop("plan", {}))
        return run_fleet(plan, join, self.emit, **rest)

    def lose_machines(self) -> None:
        shutil.rmtree(self.machines)
        self.machines.mkdir()

    def told(self, shard: int) -> list[Event]:
        return read_log(self.out / f"events-{shard}.jsonl")[0]


def test_shards_divide_the_examples_and_make_one_report(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, monkeypatch)
    summary = fleet.run(121)
    assert (summary.cases, summary.shards, summary.reason) == (121, 2, "examples")
    assert [order.spec.budget.examples for order in fleet.cluster.orders] == [61, 60]
    assert (fleet.out / "report.html").is_file()
    assert summary.out == str(fleet.out)


def test_a_finding_of_two_shards_is_reported_once_with_paths_of_this_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, monkeypatch)
    (reported,) = fleet.run(200).findings
    assert reported.finding.confirmed == "3/3"
    assert Path(reported.case_path) == fleet.out / "findings" / reported.id / "case.json"
    assert load_case(Path(reported.case_path)) == reported.case
    assert reported.replay.startswith(f"fuzzgraph replay {fleet.out}")
    assert str(fleet.machines) not in (fleet.out / "summary.json").read_text()


def test_a_slow_answer_holds_up_nobody_and_loses_no_news(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, monkeypatch, many_bugs)
    fleet.cluster.member = SlowMember
    summary = fleet.run(200)
    assert len(summary.findings) == 10
    assert summary.cases == 200


def test_the_corpus_is_run_once_by_all_shards_together(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, monkeypatch)
    corpus = [case(2, seed=seed) for seed in range(5)]
    seeds = Loaded(entries=[Entry(Path("x.json"), one, "") for one in corpus])
    assert fleet.run(20, seeds=seeds).corpus_cases == 5


class Dying(FakeRunner):
    """Takes its process with it before a case."""

    last = 0

    def run_case(self, case: Case) -> FakeVerdict:
        verdict = super().run_case(case)
        if len(self.ran) == self.last:
            raise Killed
        return verdict


@pytest.mark.parametrize("with_its_machine", [False, True])
def test_a_lost_shard_goes_on_where_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_its_machine: bool
) -> None:
    fleet = Fleet(tmp_path, monkeypatch)
    lives = iter([30, 0, 45, 0, 0, 0])

    def runner() -> FakeRunner:
        one = Dying(paged)
        one.last = next(lives)
        return one

    def before(order: ShardSpec) -> None:
        if with_its_machine and len(fleet.cluster.orders) > 2:
            shutil.rmtree(fleet.machines / f"fuzzgraph-{order.run}" / f"shard-{order.spec.shard}")

    fleet.cluster = ThreadCluster(2, before)
    fleet.runner = runner
    summary = fleet.run(200)
    assert len(fleet.cluster.orders) >= 3
    assert [one.finding.confirmed for one in summary.findings] == ["3/3"]
    assert summary.cases >= 200
    assert any("was lost (somebody killed it)" in line for line in summary.bad_entries)


def many_bugs(one: Case) -> tuple[Finding, ...]:
    return (finding(buffer=f"buffer{one.seed % 10}"),)


class DriverKilled(BaseException):
    pass


@pytest.mark.parametrize("with_all_machines", [False, True])
def test_a_killed_driver_is_taken_up_and_nothing_is_lost(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, with_all_machines: bool
) -> None:
    fleet = Fleet(tmp_path, monkeypatch, many_bugs)
    told = itertools.count(1)

    def dying(event: Event) -> None:
        if next(told) == 40:
            raise DriverKilled

    fleet.emit = dying
    with pytest.raises(DriverKilled):
        fleet.run(200)
    with (fleet.out / "events-0.jsonl").open("ab") as log:
        log.write(b'{"event":"progr')
    told_before = [event for shard in (0, 1) for event in fleet.told(shard)]
    seen = {event.id for event in told_before if isinstance(event, FindingNew)}
    if with_all_machines:
        fleet.lose_machines()
    fleet.emit = fleet.events.append
    summary = fleet.run(200)
    names = [one.id for one in summary.findings]
    assert seen
    assert seen <= set(names)
    assert len(set(names)) == len(names) == 10
    assert summary.cases >= 200
    assert not any("damaged" in line for line in summary.bad_entries)


def test_a_run_that_has_ended_is_not_begun_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, monkeypatch)
    fleet.run(20)
    with pytest.raises(UsageError, match="the run is complete"):
        fleet.run(20)


def test_a_shard_that_cannot_carry_out_its_order_ends_the_run_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, monkeypatch)

    def refuses() -> FakeRunner:
        raise UsageError("the engine is not installed. Install it.")

    fleet.runner = refuses
    with pytest.raises(FleetFailed, match=r"shard \d: UsageError: the engine is not installed"):
        fleet.run(20)


def test_a_shard_that_breaks_at_every_start_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, monkeypatch)

    def breaks() -> FakeRunner:
        raise RuntimeError("no driver")

    fleet.runner = breaks
    with pytest.raises(FleetFailed, match="lost 5 times at its start: RuntimeError: no driver"):
        fleet.run(20)


def test_ledger_and_baseline_count_on_every_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fleet = Fleet(tmp_path, monkeypatch)
    ledger = tmp_path / "ledger.toml"
    ledger.write_text(
        '[[tolerated]]\noracle = "footprint"\nissue = "https://example.org/1"\n'
        "expires = 2999-01-01\n"
    )
    summary = fleet.run(200, plan={"ledger": str(ledger)})
    assert [one.status for one in summary.findings] == ["tolerated"]
    assert summary.exit_code == 0


def test_shards_share_cases_through_the_driver(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    database = f"dir:{tmp_path / 'shared'}"
    first, second = tmp_path / "first", tmp_path / "second"
    for folder in (first, second):
        folder.mkdir()
        summary = Fleet(folder, monkeypatch).run(60, plan={"database": database})
    assert summary.corpus_cases > 10
    assert [one.source for one in summary.findings] == ["corpus"]
