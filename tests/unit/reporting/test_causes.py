"""Findings of one cause stand below the worst of them, others do not, and none is lost."""

from __future__ import annotations

import msgspec
import pytest

from fuzzgraph.case import ReplayStep
from fuzzgraph.finding import SEVERITIES, severity_of
from fuzzgraph.reporting import run_text
from fuzzgraph.reporting.causes import causes, ranked
from fuzzgraph.reporting.junit import junit
from fuzzgraph.reporting.sarif import sarif
from fuzzgraph.run.events import ReportedFinding
from tests.unit.reporting.faulty_runs import (
    STALE_ROWS,
    VIEWS,
    after,
    one_row,
    reported_of,
    run_of,
    stored,
)
from tests.unit.reporting.runs import overrun, reported

IDLE = ReplayStep(mode="idle", finish=(0,))


def sizes(*found: ReportedFinding) -> list[int]:
    return [len(entry.members) for entry in causes(found)]


@pytest.fixture(scope="module")
def stale() -> tuple[ReportedFinding, ReportedFinding, ReportedFinding]:
    """One missing reset: in decode steps, in idle steps, and in the table that follows from it."""
    return (
        reported_of(STALE_ROWS, stored(STALE_ROWS)),
        reported_of(STALE_ROWS, after(one_row(), IDLE)),
        _with_page_table(),
    )


def _with_page_table() -> ReportedFinding:
    case = stored(STALE_ROWS)
    config = msgspec.structs.replace(case.config, page_map="page_table")
    found = reported_of(STALE_ROWS, msgspec.structs.replace(case, config=config))
    every = (found.finding, *found.also)
    table = next(one for one in every if one.buffer == "page_table" and one.oracle == "contract")
    return reported(table, case=found.case, also=tuple(one for one in every if one is not table))


def test_one_missing_reset_in_two_kinds_of_step_and_a_table_is_one_entry(
    stale: tuple[ReportedFinding, ...],
) -> None:
    assert [one.finding.buffer for one in stale[:2]] == ["req_pool_indices"] * 2
    assert [one.finding.mode for one in stale[:2]] == ["decode", "idle"]
    (entry,) = causes(stale)
    assert sorted(one.id for one in entry.members) == sorted(one.id for one in stale)
    assert all(why for _, why in entry.others)


def test_two_planted_faults_are_two_entries(stale: tuple[ReportedFinding, ...]) -> None:
    views = reported_of(VIEWS, stored(VIEWS))
    assert sizes(*stale, views) == [1, 3]


def test_results_that_are_views_are_one_entry_in_every_kind_of_step() -> None:
    modes = ("draft", "decode")
    found = [
        reported_of(VIEWS, stored(VIEWS)),
        reported_of(VIEWS, after(one_row("draft"), one_row(), modes=modes)),
        reported_of(VIEWS, after(one_row("draft"), IDLE, modes=modes)),
    ]
    assert [one.finding.mode for one in found] == ["draft", "decode", "idle"]
    assert sizes(*found) == [3]


def test_the_same_buffer_broken_in_another_way_is_another_entry() -> None:
    stale = reported_of(STALE_ROWS, stored(STALE_ROWS))
    live = msgspec.structs.replace(
        stale.finding,
        mode="idle",
        message="step 1 (raw_bs=1, padded_bs=2): req_pool_indices[0] is 4, the batch says 3",
    )
    assert sizes(stale, reported(live)) == [1, 1]


def test_wrong_outputs_of_two_kinds_of_step_are_two_entries() -> None:
    wrong = msgspec.structs.replace(
        overrun("attention"), clause="computes", oracle="reference", symptom="mismatch", detail={}
    )
    other = msgspec.structs.replace(wrong, mode="idle")
    assert sizes(reported(wrong, digest="a"), reported(other, digest="b")) == [1, 1]


def test_an_overrun_of_a_buffer_of_another_line_is_another_entry() -> None:
    detail = {**overrun().detail, "allocated_at": "kv.py:90 in __init__"}
    other = msgspec.structs.replace(overrun("idle.kv_indices"), mode="idle", detail=detail)
    same = msgspec.structs.replace(overrun("idle.kv_indices"), mode="idle")
    assert sizes(reported(digest="a"), reported(other, digest="b")) == [1, 1]
    assert sizes(reported(digest="a"), reported(same, digest="b")) == [2]
    numbered = overrun("decode.2.kv_indices")
    assert sizes(reported(digest="a"), reported(numbered, digest="c")) == [2]


def test_what_shows_in_any_case_explains_nothing(stale: tuple[ReportedFinding, ...]) -> None:
    """A fault of one step of live rows is in nearly every case, whatever else that case shows."""
    simple = msgspec.structs.replace(stored(STALE_ROWS), steps=stored(STALE_ROWS).steps[:1])
    always = reported(overrun("mrope_positions"), case=simple)
    beside = msgspec.structs.replace(stale[0], also=(*stale[0].also, always.finding))
    assert sizes(always, beside) == [1, 1]
    later = msgspec.structs.replace(always, case=stored(STALE_ROWS))
    assert sizes(later, beside) == [2]


def test_what_came_up_late_shows_in_few_cases_and_so_explains_what_it_is_seen_with(
    stale: tuple[ReportedFinding, ...],
) -> None:
    simple = msgspec.structs.replace(stored(STALE_ROWS), steps=stored(STALE_ROWS).steps[:1])
    cause = reported(overrun("mrope_positions"), case=simple, after_cases=11)
    at_its_step = msgspec.structs.replace(cause.finding, step=stale[0].finding.step)
    beside = msgspec.structs.replace(stale[0], also=(*stale[0].also, at_its_step))
    assert sizes(cause, beside) == [2]
    assert sizes(msgspec.structs.replace(cause, after_cases=10), beside) == [1, 1]
    elsewhere = msgspec.structs.replace(at_its_step, step=at_its_step.step - 1)
    assert sizes(cause, msgspec.structs.replace(beside, also=(elsewhere,))) == [1, 1]


def test_a_case_that_is_not_shrunk_explains_nothing(stale: tuple[ReportedFinding, ...]) -> None:
    unshrunk = msgspec.structs.replace(stale[2], left=("shrink",))
    assert sizes(stale[0], unshrunk) == [1, 1]


def test_the_same_exception_at_the_same_line_is_one_entry() -> None:
    ends = [
        reported(
            msgspec.structs.replace(
                overrun(buffer),
                clause="survives",
                symptom="exception",
                detail={"error": "IndexError: index 9", "where": where},
            )
        )
        for buffer, where in (("a", "x.py:1 in f"), ("b", "x.py:1 in f"), ("c", "x.py:2 in f"))
    ]
    assert sizes(*ends) == [2, 1]


def test_every_report_keeps_every_finding_its_id_and_the_exit_code(
    stale: tuple[ReportedFinding, ...],
) -> None:
    run = run_of(STALE_ROWS, *stale)
    text = run_text(run)
    ids = {one.id for one in stale}
    assert all(one.id in text and one.replay in text for one in stale)
    assert {one["properties"]["id"] for one in sarif(run)["runs"][0]["results"]} == ids
    assert all(one.id.encode() in junit(run) for one in stale)
    assert run.exit_code == 1 and {one.id for one in ranked(run.findings)} == ids


def test_the_worst_finding_comes_first_and_equal_ones_keep_their_order() -> None:
    clauses = ("metadata", "reads", "computes", "history", "writes", "survives")
    found = [
        reported(msgspec.structs.replace(overrun(f"b{at}"), clause=clause, symptom="missing"))
        for at, clause in enumerate(clauses)  # type: ignore[arg-type]
    ]
    order = [one.finding.clause for one in ranked(found)]
    assert order == ["writes", "survives", "computes", "history", "reads", "metadata"]


def test_every_clause_has_a_severity_that_its_findings_take() -> None:
    assert severity_of("writes") == severity_of("survives") == "critical"
    assert overrun().severity == "critical"
    nan = msgspec.structs.replace(overrun(), clause="reads", symptom="nan_mismatch")
    assert nan.severity == "low"
    claimed = msgspec.structs.replace(overrun(), severity="low")
    assert claimed.severity == "critical"
    assert list(SEVERITIES) == ["critical", "high", "medium", "low"]
