"""The campaign on a runner without an engine: order, budgets, findings, shards, interruption."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

import msgspec
import pytest

from fuzzgraph.campaign import RunFolder, fresh_folder
from fuzzgraph.campaign.budget import StopCampaign
from fuzzgraph.case import Case, load_case
from fuzzgraph.errors import InvalidCase, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import (
    CaseRun,
    FindingFlaky,
    FindingNew,
    FindingRepeated,
    Progress,
    RunSummary,
    finding_id,
)
from fuzzgraph.run.option import parse_time
from tests.fakes import FakeRunner, FakeVerdict, case, finding, paged
from tests.unit.campaigns import CampaignRun, Clock


def test_a_finding_is_confirmed_shrunk_and_saved(tmp_path: Path) -> None:
    run = CampaignRun(tmp_path, FakeRunner(paged))
    summary = run.run()
    (reported,) = summary.findings
    assert reported.finding.confirmed == "3/3"
    assert len(reported.case.steps) == 2
    assert load_case(Path(reported.case_path)) == reported.case
    assert reported.replay == f"fuzzgraph replay {reported.case_path} --target builtin"
    assert summary.exit_code == 1


def test_a_healthy_engine_gives_nothing_and_runs_all_examples(tmp_path: Path) -> None:
    run = CampaignRun(tmp_path, FakeRunner(), examples=150)
    summary = run.run()
    assert (summary.findings, summary.cases, summary.reason) == ((), 150, "examples")
    assert summary.exit_code == 0


def test_the_case_is_on_disk_before_the_finding_is_worked_on(tmp_path: Path) -> None:
    class Dying(FakeRunner):
        def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
            raise KeyboardInterrupt

    run = CampaignRun(tmp_path, Dying(paged))
    with pytest.raises(KeyboardInterrupt):
        run.run()
    name = finding_id(finding(step=1).key)
    assert paged(load_case(tmp_path / "findings" / name / "found.json"))


def test_the_corpus_runs_before_anything_is_generated(tmp_path: Path) -> None:
    saved = [case(1, seed=7), case(2, seed=8)]
    run = CampaignRun(tmp_path, FakeRunner(), corpus=saved, examples=5)
    summary = run.run()
    assert run.runner.ran[:2] == saved
    assert (summary.corpus_cases, summary.cases) == (2, 7)
    assert [event.source for event in run.of(CaseRun)] == ["corpus", "corpus"]


def test_without_examples_the_corpus_alone_runs(tmp_path: Path) -> None:
    run = CampaignRun(tmp_path, FakeRunner(), corpus=[case(1)], examples=0)
    assert run.run().reason == "corpus"
    assert run.runner.ran == [case(1)]


def test_a_corpus_entry_that_the_pools_cannot_hold_costs_that_entry(tmp_path: Path) -> None:
    class Small(FakeRunner):
        def run_case(self, case: Case) -> FakeVerdict:
            if case.seed == 7:
                raise InvalidCase("kv_pool_pages=1 are too few. Raise it.")
            return super().run_case(case)

    run = CampaignRun(tmp_path, Small(), corpus=[case(1, seed=7), case(1)], examples=0)
    summary = run.run()
    assert summary.bad_entries == ("0.json: kv_pool_pages=1 are too few. Raise it.",)
    assert summary.cases == 1


def ran(folder: Path, **plan: Any) -> list[Case]:
    folder.mkdir()
    runner = FakeRunner()
    CampaignRun(folder, runner, examples=120, **plan).run()
    return runner.ran


def test_the_same_seed_runs_the_same_cases(tmp_path: Path) -> None:
    assert ran(tmp_path / "a", seed=5) == ran(tmp_path / "b", seed=5)


@pytest.mark.parametrize("other", [{"seed": 6}, {"seed": 5, "shard": 1, "shards": 2}])
def test_another_seed_or_shard_runs_other_cases(tmp_path: Path, other: dict[str, int]) -> None:
    first, second = ran(tmp_path / "a", seed=5), ran(tmp_path / "b", **other)
    shared = sum(one in first for one in second)
    assert shared < len(second) / 4


def test_the_findings_budget_ends_the_search(tmp_path: Path) -> None:
    run = CampaignRun(tmp_path, FakeRunner(paged), findings=1, examples=None)
    assert (run.run().reason, len(run.of(FindingNew))) == ("findings", 1)


def two_bugs(one: Case) -> tuple[Finding, ...]:
    found = paged(one)
    if len(one.steps) > 2:
        found += (finding("reference", "computes", "attention", step=2),)
    return found


def test_shrinking_does_not_slip_from_one_bug_to_another(tmp_path: Path) -> None:
    summary = CampaignRun(tmp_path, FakeRunner(two_bugs)).run()
    steps = {one.finding.oracle: len(one.case.steps) for one in summary.findings}
    assert steps == {"footprint": 2, "reference": 3}


def test_a_known_finding_is_counted_and_not_reported_again(tmp_path: Path) -> None:
    run = CampaignRun(tmp_path, FakeRunner(paged))
    summary = run.run()
    (reported,) = summary.findings
    with_it = sum(event.outcome == "finding" for event in run.of(CaseRun))
    assert summary.repeats[reported.id] == with_it - 1
    assert len(run.of(FindingNew)) == 1
    assert 0 < len(run.of(FindingRepeated)) <= with_it


def one_bug_two_clauses(one: Case) -> tuple[Finding, ...]:
    found = paged(one)
    if found:
        found += (finding("reference", "computes", "attention", step=1),)
    return found


def test_what_else_the_shrunk_case_breaks_is_told_with_it(tmp_path: Path) -> None:
    (reported,) = CampaignRun(tmp_path, FakeRunner(one_bug_two_clauses)).run().findings
    assert reported.finding.oracle == "footprint"
    assert [other.oracle for other in reported.also] == ["reference"]


def behind_a_companion(one: Case) -> tuple[Finding, ...]:
    if found := one_bug_two_clauses(one):
        return found
    if len(one.steps) > 2:
        return (finding("reference", "computes", "attention", step=2),)
    return ()


def test_a_second_bug_that_looks_like_a_companion_is_not_swallowed(tmp_path: Path) -> None:
    summary = CampaignRun(tmp_path, FakeRunner(behind_a_companion)).run()
    assert {one.finding.oracle for one in summary.findings} == {"footprint", "reference"}


def test_a_finding_that_no_fresh_session_shows_is_reported_as_flaky(tmp_path: Path) -> None:
    run = CampaignRun(tmp_path, FakeRunner(paged, rate="0/3"))
    summary = run.run()
    (reported,) = summary.findings
    assert reported.flaky
    assert reported.shrink_tries == 0
    assert [event.rate for event in run.of(FindingFlaky)] == ["0/3"]
    assert summary.exit_code == 1


def test_a_shrunk_case_that_fresh_sessions_do_not_show_is_not_kept(tmp_path: Path) -> None:
    class OnlyTheFirst(FakeRunner):
        def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
            rate = "3/3" if len(case.steps) > 2 else "0/3"
            return msgspec.structs.replace(finding, confirmed=rate)

    def wide(one: Case) -> tuple[Finding, ...]:
        # found with many steps first, so that shrinking has something to lose
        return paged(one) if len(one.steps) > 2 or runner.found else ()

    class Remembering(OnlyTheFirst):
        found = False

        def confirm(self, case: Case, finding: Finding, times: int = 3) -> Finding:
            self.found = True
            return super().confirm(case, finding, times)

    runner = Remembering(wide)
    (reported,) = CampaignRun(tmp_path, runner, findings=1, examples=None).run().findings
    assert len(reported.case.steps) > 2
    assert reported.finding.confirmed == "3/3"


def test_two_shards_report_a_finding_once(tmp_path: Path) -> None:
    summaries = [
        CampaignRun(tmp_path, FakeRunner(one_bug_two_clauses), shard=shard, shards=2).run()
        for shard in (0, 1)
    ]
    assert [len(summary.findings) for summary in summaries] == [1, 0]
    assert RunFolder(tmp_path).shard_summaries() == (summaries, [])


def test_what_shows_only_beside_another_shards_finding_is_left_to_that_finding(
    tmp_path: Path,
) -> None:
    name = finding_id(finding().key)
    RunFolder(tmp_path).claim(name)
    summary = CampaignRun(tmp_path, FakeRunner(one_bug_two_clauses), shard=1, shards=2).run()
    assert summary.findings == ()
    assert [other.oracle for other in summary.beside[name]] == ["reference"]


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_first_signal_finishes_the_case_and_writes_the_report(
    tmp_path: Path, number: signal.Signals
) -> None:
    class Interrupting(FakeRunner):
        def run_case(self, case: Case) -> FakeVerdict:
            verdict = super().run_case(case)
            if len(self.ran) == 20:
                os.kill(os.getpid(), number)
            return verdict

    before = signal.getsignal(number)
    summary = CampaignRun(tmp_path, Interrupting(), examples=None).run()
    assert (summary.reason, summary.cases) == ("interrupted", 20)
    assert msgspec.json.decode((tmp_path / "summary.json").read_bytes())["reason"] == "interrupted"
    assert signal.getsignal(number) is before


def test_a_runner_that_breaks_leaves_the_case_and_a_report(tmp_path: Path) -> None:
    class Broken(FakeRunner):
        def run_case(self, case: Case) -> FakeVerdict:
            super().run_case(case)
            raise RuntimeError("the harness is at fault")

    run = CampaignRun(tmp_path, Broken())
    with pytest.raises(RuntimeError, match="at fault"):
        run.run()
    assert len(run.runner.ran) == 1
    (left,) = tmp_path.glob("unfinished-*.json")
    assert load_case(left) == run.runner.ran[0]
    summary = msgspec.json.decode((tmp_path / "summary.json").read_bytes(), type=RunSummary)
    assert (summary.exit_code, summary.error) == (3, "RuntimeError: the harness is at fault")


def test_progress_tells_what_is_left(tmp_path: Path) -> None:
    run = CampaignRun(tmp_path, FakeRunner(), seconds=10.0, examples=None, clock=Clock(0.01))
    run.run()
    told = run.of(Progress)
    assert len(told) >= 9
    assert all(event.seconds + event.seconds_left == pytest.approx(10, abs=0.1) for event in told)
    assert told[-1].doing == "done"


def test_a_time_without_a_unit_counts_seconds() -> None:
    assert [parse_time(text) for text in ("60s", "10m", "8h", "90", "1.5m")] == [
        60.0,
        600.0,
        28800.0,
        90.0,
        90.0,
    ]


@pytest.mark.parametrize("text", ["10x", "", "s", "0s", "-5s", "1e400", "nan", "10 s", "١s"])
def test_a_time_that_is_none_is_refused_with_the_way_out(text: str) -> None:
    with pytest.raises(
        UsageError, match="is not a valid duration. Write a number and a unit, e.g. 60s"
    ):
        parse_time(text)


def test_a_run_folder_is_never_shared_by_two_runs(tmp_path: Path) -> None:
    first = fresh_folder(None, 1, tmp_path)
    second = fresh_folder(None, 1, tmp_path)
    assert first != second
    (first / "x").write_text("")
    with pytest.raises(UsageError, match="already holds files"):
        fresh_folder(first, 1)


def test_the_end_of_a_block_passes_through_hypothesis() -> None:
    assert not issubclass(StopCampaign, Exception)
