"""Events: what is written reads back, and names and counts are stable."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.events import (
    CampaignFinished,
    CampaignStarted,
    CaseRun,
    Event,
    Exported,
    FindingFlaky,
    FindingNew,
    FindingRepeated,
    Progress,
    ReportedFinding,
    RunSummary,
    Setup,
    Shrunk,
    decode_event,
    encode_event,
    finding_id,
    read_events,
)
from fuzzgraph.reporting import EventFile
from tests.fakes import case, finding

REPORTED = ReportedFinding(id="x", finding=finding(), case=case(1), digest="d")
SUMMARY = RunSummary(fuzzgraph="0", setup=Setup(), seed=1, cases=10, seconds=2.0)
EVENTS: tuple[Event, ...] = (
    CampaignStarted(setup=Setup(target="t"), seed=3),
    CaseRun(index=0, digest="d", source="corpus", outcome="clean", steps=2, seconds=0.5),
    FindingNew(id="x", finding=finding(), case=case(1, 2)),
    FindingRepeated(id="x", digest="d"),
    FindingFlaky(id="x", rate="1/3"),
    Shrunk(id="x", before="a", after="b", steps=1, requests=1, tries=9, seconds=0.1),
    Exported(reported=REPORTED),
    Progress(seconds=1.0, cases=5, steps=10, findings=0, rate=5.0),
    CampaignFinished(summary=SUMMARY),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_reads_back_from_its_line(event: Event) -> None:
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert decode_event(line) == event


def test_a_file_cut_short_by_a_kill_reads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    for event in EVENTS:
        file(event)
    file.close()
    path.write_bytes(path.read_bytes()[:-5])
    assert list(read_events(path)) == list(EVENTS[:-1])


def test_a_line_that_is_no_event_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match="not an event of this FuzzGraph"):
        decode_event('{"event": "unheard_of"}')


def test_findings_with_another_key_have_another_name() -> None:
    names = {
        finding_id(finding(buffer=buffer, mode=mode).key)
        for buffer in ("kv_indices", "kv_indptr", "")
        for mode in ("decode", "target_verify")
    }
    assert len(names) == 6


def test_what_breaks_before_the_first_step_is_the_same_whatever_the_step_would_have_been() -> None:
    keys = {finding(step=-1, mode=mode).key for mode in ("decode", "idle")}
    assert len(keys) == 1
    assert finding_id(keys.pop()).startswith("footprint-kv_indices-")


def test_a_finding_name_is_fit_for_a_file() -> None:
    name = finding_id(finding(buffer="runner.buffers['x/../y']").key)
    assert "/" not in name and "'" not in name


@pytest.mark.parametrize(
    ("findings", "error", "code"), [((), "", 0), ((REPORTED,), "", 1), ((REPORTED,), "broke", 3)]
)
def test_a_summary_knows_its_exit_code(
    findings: tuple[ReportedFinding, ...], error: str, code: int
) -> None:
    summary = RunSummary(fuzzgraph="0", setup=Setup(), seed=1, findings=findings, error=error)
    assert summary.exit_code == code


def test_a_finding_that_shows_in_some_fresh_sessions_only_is_flaky() -> None:
    flaky = {
        rate: ReportedFinding(
            id="x", finding=finding(confirmed=rate), case=case(1), digest="d"
        ).flaky
        for rate in ("", "0/3", "2/3", "3/3")
    }
    assert flaky == {"": False, "0/3": True, "2/3": True, "3/3": False}
