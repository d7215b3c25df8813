"""A gate as text: what counts, what is doubtful, and a page that fits into a comment."""

from __future__ import annotations

import msgspec
import pytest

from fuzzgraph.finding import Finding
from fuzzgraph.gate.records import GateSpec, GateSummary, GateTarget, StandingFinding
from fuzzgraph.gate.report import markdown, sarif_log, text, verdict
from fuzzgraph.gate.run import _exit_code
from fuzzgraph.reporting.markdown import LONGEST
from fuzzgraph.run.events import Reason, ReportedFinding, RunSummary, finding_id
from fuzzgraph.run.spec import RunSpec, Setup
from tests.unit.reporting.runs import reported

SPEC = GateSpec(source=".", base="origin/main", seconds=60.0, seed=3, jobs=2)


def with_rate(one: ReportedFinding, rate: str, on_base: str = "0/3") -> ReportedFinding:
    detail = {**one.finding.detail, "on_base": on_base}
    finding = msgspec.structs.replace(one.finding, confirmed=rate, detail=detail)
    return msgspec.structs.replace(one, finding=finding)


def gate(*found: ReportedFinding, **fields: object) -> GateSummary:
    run = RunSummary(
        fuzzgraph="0", spec=RunSpec(setup=Setup(target="engine"), seed=3), findings=found, cases=9
    )
    target = GateTarget(target="engine", touched=("runner.py:prepare",), summary=run, seconds=9.0)
    target = msgspec.structs.replace(target, **fields)
    return GateSummary(
        fuzzgraph="0", package="engine", base="0" * 40, head="1" * 40 + "+" + "2" * 12,
        branch="topic", spec=SPEC, touched=("runner.py",), targets=(target,),
    )  # fmt: skip


def test_what_fresh_sessions_confirm_is_the_changes_and_decides_the_exit_code() -> None:
    summary = gate(with_rate(reported(), "3/3"))
    assert verdict(summary) == "this change brings 1 finding"
    assert _exit_code(summary) == 1
    assert len(sarif_log(summary)["runs"][0]["results"]) == 1


def test_a_target_that_checked_no_case_acquits_nothing() -> None:
    summary = gate()
    run = summary.targets[0].summary
    assert run is not None and _exit_code(summary) == 0
    blind = gate(summary=msgspec.structs.replace(run, skipped=run.cases))
    assert "NO CASE OF engine RAN ON BOTH TREES" in verdict(blind)
    assert _exit_code(blind) == 3


@pytest.mark.parametrize("rate", ["", "0/3", "2/3"])
def test_what_is_not_confirmed_is_told_and_condemns_nobody(rate: str) -> None:
    summary = gate(with_rate(reported(), rate, on_base="1/3"))
    assert verdict(summary) == "nothing new found; 1 finding not confirmed"
    assert _exit_code(summary) == 0
    assert "## Seen on this tree alone, and not confirmed" in markdown(summary)
    assert "of the base 1/3" in markdown(summary)


def test_what_stands_is_linked_and_not_blamed() -> None:
    finding: Finding = reported().finding
    standing = StandingFinding(
        id=finding_id(finding.key),
        finding=finding,
        case_path="runs/t/standing/0.json",
        cases=4,
        was="footprint-old-decode-123456",
    )
    summary = gate(standing=(standing,))
    assert verdict(summary) == "nothing new found; 1 finding of the base stands"
    page = markdown(summary)
    assert f"- [{standing.id}](runs/t/standing/0.json) (engine)" in page
    assert "not blamed on this change" in page and "on the base `footprint-old-decode" in page


def test_a_target_that_could_not_be_judged_is_no_pass() -> None:
    summary = gate(summary=None, why="no such module")
    assert _exit_code(summary) == 3
    assert "not judged: engine" in verdict(summary) and "no such module" in text(summary)


@pytest.mark.parametrize("reason", ["interrupted", "killed", "failed"])
def test_a_search_that_was_cut_short_is_no_pass(reason: Reason) -> None:
    summary = gate()
    (target,) = summary.targets
    assert target.summary is not None
    run = msgspec.structs.replace(target.summary, reason=reason)
    cut = (msgspec.structs.replace(target, summary=run),)
    summary = msgspec.structs.replace(summary, targets=cut)
    assert _exit_code(summary) == 3
    assert verdict(summary).startswith("CUT SHORT")


def test_trees_and_what_was_executed_are_named() -> None:
    page = markdown(gate())
    assert "engine: commit 111111111111 with changes 222222222222 on topic" in page
    assert "against commit 000000000000 (origin/main)" in page
    assert "runner.py:prepare" in page


def test_a_page_of_many_findings_fits_into_a_comment_and_says_what_is_cut() -> None:
    first = with_rate(reported(), "3/3")
    page = markdown(gate(*(another(first, number) for number in range(300))))
    assert 0.9 * LONGEST < len(page) <= LONGEST
    assert page.endswith("more parts: see gate.json.\n")


def another(one: ReportedFinding, number: int) -> ReportedFinding:
    """A finding of another buffer, in a case of its own."""
    finding = msgspec.structs.replace(
        one.finding, buffer=f"buffer_{number}", detail={"on_base": "0/3"}
    )
    return msgspec.structs.replace(
        one, id=finding_id(finding.key), finding=finding, digest=f"{number:064}", also=()
    )


def test_a_change_that_no_case_executed_is_no_silent_pass() -> None:
    summary = msgspec.structs.replace(gate(), statements=2, never_ran={"runner.py": (4, 9)})
    assert verdict(summary).startswith("NO CASE EXECUTED WHAT CHANGED")
    assert "never executed: runner.py: lines 4, 9" in text(summary)


def test_kernels_whose_lines_are_not_followed_are_named() -> None:
    summary = msgspec.structs.replace(
        gate(), statements=1, never_ran={"kernels.py": (4,)}, kernels=("kernels.py",)
    )
    assert "1 of 1 changed statement never executed" in verdict(summary)
    assert "Which lines of Triton kernels ran is not told: kernels.py." in markdown(summary)


def test_lines_that_no_case_executed_are_shown_up_to_a_dozen_a_file() -> None:
    summary = msgspec.structs.replace(gate(), statements=90, never_ran={"a.py": tuple(range(30))})
    assert "30 of 90 changed statements never executed" in verdict(summary)
    assert "10, 11 and 18 more" in text(summary)


def test_files_that_a_target_runs_come_first_and_the_rest_is_counted() -> None:
    never = {f"parser_{number:02}.py": (1,) for number in range(20)} | {"runner.py": (7,)}
    summary = msgspec.structs.replace(
        gate(), statements=90, never_ran=never, entered=("runner.py",)
    )
    told = [line for line in text(summary).splitlines() if "never executed:" in line]
    assert "runner.py: line 7" in told[0] and "parser_00.py" in told[1]
    assert len(told) == 13 and "9 more files, which gate.json names" in told[-1]
