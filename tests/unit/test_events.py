"""Events: what is written reads back, and names and counts are stable."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.reporting import EventFile
from fuzzgraph.run.coverage import Coverage
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import (
    CampaignFinished,
    CampaignStarted,
    CaseRun,
    Counted,
    Event,
    Exported,
    FindingFlaky,
    FindingNew,
    FindingPursued,
    FindingRepeated,
    Progress,
    ReportedFinding,
    RunSummary,
    Setup,
    Shrunk,
    decode_event,
    encode_event,
    finding_id,
)
from fuzzgraph.run.spec import RunSpec
from tests.fakes import case, finding

ID = finding_id(finding().key)
REPORTED = ReportedFinding(id=ID, finding=finding(), case=case(1), digest="d")
SUMMARY = RunSummary(fuzzgraph="0", spec=RunSpec(seed=1), cases=10, seconds=2.0)
EVENTS: tuple[Event, ...] = (
    CampaignStarted(spec=RunSpec(setup=Setup(target="t"), seed=3)),
    CaseRun(index=0, digest="d", source="corpus", outcome="clean", steps=2, seconds=0.5),
    FindingNew(id=ID, finding=finding(), case=case(1, 2)),
    FindingRepeated(id=ID, digest="d", count=1),
    FindingFlaky(id=ID, rate="1/3"),
    Shrunk(id=ID, before="a", after="b", steps=1, requests=1, tries=9, seconds=0.1),
    FindingPursued(reported=REPORTED),
    Exported(reported=REPORTED),
    Counted(coverage=Coverage(cases={"a": 2, "b": 1}, together=("2", "1"))),
    Progress(seconds=1.0, cases=5, steps=10, findings=0, rate=5.0),
    CampaignFinished(summary=SUMMARY),
)


@pytest.mark.parametrize("event", EVENTS, ids=lambda event: type(event).__name__)
def test_an_event_reads_back_from_its_line(event: Event) -> None:
    line = encode_event(event)
    assert line.count(b"\n") == 1
    assert decode_event(line) == event


def log_of(tmp_path: Path) -> Path:
    path = tmp_path / "events.jsonl"
    file = EventFile(path)
    for event in EVENTS:
        file(event)
    file.close()
    return path


def test_a_log_cut_short_by_a_kill_reads_up_to_its_last_whole_line(tmp_path: Path) -> None:
    path = log_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    events, damaged, cut = read_log(path)
    assert events == list(EVENTS[:-1])
    assert cut == [f"events.jsonl:{len(EVENTS)}: not an event (cut short); left out"]
    assert not damaged


def test_a_damaged_line_of_a_log_costs_that_line_and_is_named(tmp_path: Path) -> None:
    path = log_of(tmp_path)
    lines = path.read_bytes().splitlines(keepends=True)
    lines[1] = b'{"event": "unheard_of"}\n'
    lines[3] = b"\xff\x00 no JSON\n"
    lines[5] = b'{"event":"progress","a":' + b"[" * 100_000 + b"\n"
    path.write_bytes(b"".join(lines))
    events, damaged, cut = read_log(path)
    assert events == [EVENTS[0], EVENTS[2], EVENTS[4], *EVENTS[6:]]
    assert not cut
    named = [line.partition(": not an event")[0] for line in damaged]
    assert named == ["events.jsonl:2", "events.jsonl:4", "events.jsonl:6"]


def test_a_log_that_goes_on_after_a_kill_starts_on_a_line_of_its_own(tmp_path: Path) -> None:
    path = log_of(tmp_path)
    path.write_bytes(path.read_bytes()[:-5])
    file = EventFile(path)
    file(EVENTS[0])
    file.close()
    events, damaged, cut = read_log(path)
    assert events == [*EVENTS[:-1], EVENTS[0]]
    assert (len(cut), damaged) == (1, [])


@pytest.mark.parametrize(
    "line",
    [
        b'{"event": "unheard_of"}',
        b'{"event":"progress","doing":"\xff"}',
        b'{"event":"progress","a":' + b"[" * 100_000,
    ],
    ids=["of an unknown kind", "no text", "nested beyond all bounds"],
)
def test_a_line_that_is_no_event_is_refused_with_the_way_out(line: bytes) -> None:
    with pytest.raises(UsageError, match="not an event of this FuzzGraph"):
        decode_event(line)


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
    ("cases", "findings", "error", "code"),
    [
        (1, (), "", 0), (1, (REPORTED,), "", 1), (1, (REPORTED,), "broke", 3), (0, (), "", 3),
    ],
)  # fmt: skip
def test_a_summary_knows_its_exit_code(
    cases: int, findings: tuple[ReportedFinding, ...], error: str, code: int
) -> None:
    summary = RunSummary(
        fuzzgraph="0", spec=RunSpec(seed=1), cases=cases, findings=findings, error=error
    )
    assert summary.exit_code == code


def test_a_finding_that_shows_in_some_fresh_sessions_only_is_flaky() -> None:
    flaky = {
        rate: ReportedFinding(
            id=ID, finding=finding(confirmed=rate), case=case(1), digest="d"
        ).flaky
        for rate in ("", "0/3", "2/3", "3/3")
    }
    assert flaky == {"": False, "0/3": True, "2/3": True, "3/3": False}
