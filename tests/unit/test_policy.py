"""What ledger and baseline do to a run: exit code, cases never launched, entries that can go."""

from __future__ import annotations

from datetime import date
from pathlib import Path

from fuzzgraph.baseline import Baseline, known_of
from fuzzgraph.campaign import Campaign, Opened, SavedCases, Tools
from fuzzgraph.campaign.export import no_export
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, digest, validate
from fuzzgraph.corpus import Entry, readable_json
from fuzzgraph.coverage_values import coverage_values
from fuzzgraph.finding import Finding
from fuzzgraph.layout import plan
from fuzzgraph.ledger import Ledger, parse_ledger
from fuzzgraph.policy import FindingPolicy
from fuzzgraph.run.events import ReportedFinding, RunSummary, Setup, finding_id
from fuzzgraph.run.spec import Budget, RunSpec
from tests.fakes import FakeRunner, FakeTarget, FakeVerdict, case, finding, paged

ISSUE = 'issue = "https://example.org/1"\nexpires = 2026-12-31\n'


def ledger(text: str, folder: Path = Path()) -> Ledger:
    return parse_ledger(text + ISSUE, date(2026, 6, 1), folder=folder)


def run(folder: Path, runner: FakeRunner, policy: FindingPolicy, *corpus: Case) -> RunSummary:
    campaign = Campaign(
        RunSpec(out=str(folder), budget=Budget(None, 200), only_new=policy.only_new),
        Opened(Setup(), FakeTarget(), runner, lambda: None),
        lambda event: None,
        SavedCases(
            [Entry(Path(f"{index}.json"), one, digest(one)) for index, one in enumerate(corpus)]
        ),
        policy,
        tools=Tools(no_export),
    )
    return campaign.run()


def known(*findings: Finding) -> Baseline:
    reported = [
        ReportedFinding(id=finding_id(one.key), finding=one, case=case(1), digest="d")
        for one in findings
    ]
    return Baseline(known_of(reported, ""))


def test_a_tolerated_finding_is_reported_and_leaves_the_exit_code_alone(tmp_path: Path) -> None:
    policy = FindingPolicy(ledger('[[tolerated]]\nbuffer = "kv_indices"\n'))
    summary = run(tmp_path, FakeRunner(paged), policy)
    (reported,) = summary.findings
    assert (reported.status, reported.issue) == ("tolerated", "https://example.org/1")
    assert summary.exit_code == 0


def test_a_known_finding_counts_unless_only_new_ones_are_asked_for(tmp_path: Path) -> None:
    baseline = known(finding())
    all_of_them = run(tmp_path, FakeRunner(paged), FindingPolicy(baseline=baseline))
    assert (all_of_them.findings[0].status, all_of_them.exit_code) == ("known", 1)
    (tmp_path / "two").mkdir()
    new = run(tmp_path / "two", FakeRunner(paged), FindingPolicy(baseline=baseline, only_new=True))
    assert (new.findings[0].status, new.exit_code) == ("known", 0)


def test_a_new_finding_beside_a_known_one_counts(tmp_path: Path) -> None:
    def two_bugs(one: Case) -> tuple[Finding, ...]:
        return paged(one) or ((finding(buffer="other"),) if len(one.steps) == 1 else ())

    policy = FindingPolicy(baseline=known(finding()), only_new=True)
    summary = run(tmp_path, FakeRunner(two_bugs), policy)
    assert sorted(one.status for one in summary.findings) == ["known", "new"]
    assert summary.exit_code == 1


def test_a_quarantined_case_is_never_launched_not_even_by_the_shrinker(tmp_path: Path) -> None:
    policy = FindingPolicy(ledger('[[quarantined]]\nwhen = ["page_size=16", "2 rows"]\n'))
    runner = FakeRunner(paged)
    deadly = case(2, page_size=16)
    summary = run(tmp_path, runner, policy, deadly)
    assert deadly not in runner.ran
    assert not [one for one in runner.ran if {"page_size=16", "2 rows"} <= coverage_values(one)]
    ((name, count),) = summary.quarantined.items()
    assert name == "page_size=16 + 2 rows (https://example.org/1)"
    assert count >= 1
    assert summary.findings, "the bug shows without two rows as well"


def tolerating_a_case(tmp_path: Path, one: Case) -> FindingPolicy:
    (tmp_path / "known.json").write_bytes(readable_json(one))
    text = '[[tolerated]]\nbuffer = "kv_indices"\ncase = "known.json"\n'
    return FindingPolicy(ledger(text, tmp_path))


def test_a_tolerated_entry_whose_case_passes_is_reported_as_mended(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    summary = run(out, FakeRunner(), tolerating_a_case(tmp_path, case(2, 1, page_size=16)))
    assert summary.mended == ("kv_indices (https://example.org/1): its case passed 3 times",)


def test_a_tolerated_entry_whose_case_still_fails_is_not(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    summary = run(out, FakeRunner(paged), tolerating_a_case(tmp_path, case(2, 1, page_size=16)))
    assert summary.mended == ()
    assert summary.findings[0].status == "tolerated"


def test_a_case_of_the_ledger_that_cannot_be_read_costs_its_entry_and_is_named(
    tmp_path: Path,
) -> None:
    policy = tolerating_a_case(tmp_path, case(1))
    (tmp_path / "known.json").write_text("{")
    out = tmp_path / "run"
    out.mkdir()
    summary = run(out, FakeRunner(paged), policy)
    (line,) = summary.bad_entries
    assert "known.json" in line
    assert summary.cases > 0


def test_a_case_of_the_ledger_that_does_not_fit_its_pools_costs_its_entry_and_is_named(
    tmp_path: Path,
) -> None:
    class Planning(FakeRunner):
        def run_case(self, case: Case) -> FakeVerdict:
            plan(case)
            return super().run_case(case)

    large = Case(
        schema_version=1,
        config=EngineConfig(page_size=1, kv_pool_pages=1),
        steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=8),)),),
    )
    out = tmp_path / "run"
    out.mkdir()
    summary = run(out, Planning(), tolerating_a_case(tmp_path, validate(large)))
    assert summary.mended == ()
    (line,) = summary.bad_entries
    assert line.startswith("ledger: kv_indices (https://example.org/1): known.json: ")
    assert "kv_pool_pages=1" in line
    assert summary.reason == "examples"
