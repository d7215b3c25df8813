"""A report of a damaged log does not say that nothing was found."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from xml.etree import ElementTree

import msgspec
import pytest

from fuzzgraph.campaign.reports import rebuilt, write_reports
from fuzzgraph.campaign.resume import load_run_state
from fuzzgraph.cli.entry import run_command
from fuzzgraph.reporting import run_text
from fuzzgraph.reporting.formats import FORMATS
from fuzzgraph.run.events import CampaignFinished, CaseRun, FindingNew, FindingPursued, Progress
from tests.unit.reporting.runs import STARTED, history, overrun, reported, summary, write_log

ONE = reported()
EVENTS = (
    STARTED,
    FindingNew(id=ONE.id, finding=overrun(), case=history()),
    FindingPursued(reported=ONE),
    CampaignFinished(summary=summary(ONE)),
)


def run_of(folder: Path) -> Path:
    """A run with one finding, as it lies on disk."""
    write_log(folder, *EVENTS)
    place = folder / "findings" / ONE.id
    place.mkdir(parents=True)
    (place / "finding.json").write_bytes(msgspec.json.encode(ONE))
    return folder


def change_lines(change: Callable[[list[bytes]], list[bytes]]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        log = folder / "events.jsonl"
        log.write_bytes(b"".join(change(log.read_bytes().splitlines(keepends=True))))

    return damage


def without_record(damage: Callable[[Path], None]) -> Callable[[Path], None]:
    def both(folder: Path) -> None:
        damage(folder)
        (folder / "findings" / ONE.id / "finding.json").unlink()
        (folder / "findings" / ONE.id / "case.json").write_bytes(b"{}")

    return both


def garbled(lines: list[bytes]) -> list[bytes]:
    return [lines[0], *(b"\x00" * 20 + line for line in lines[1:])]


DAMAGE = {
    "lines that cannot be read": change_lines(garbled),
    "lines that are gone": change_lines(lambda lines: lines[:1]),
    "the same, and no record beside it": without_record(change_lines(lambda lines: lines[:1])),
    "a line cut in the middle": change_lines(lambda lines: [lines[0], lines[1][:50] + b"\n"]),
    "its start gone": change_lines(lambda lines: lines[1:-1]),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_the_report_of_a_damaged_log_is_not_green(
    how: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = run_of(tmp_path / "r")
    if how == "its start gone":
        (folder / "summary.json").write_bytes(msgspec.json.encode(summary()))
    DAMAGE[how](folder)
    assert run_command(["report", str(folder)]) == 3
    assert "damaged: " in capsys.readouterr().err
    for name in FORMATS.values():
        assert "nothing found" not in (folder / name).read_text().lower()
    (suite,) = ElementTree.parse(folder / "junit.xml").getroot()
    assert suite.get("errors") == "1"
    (run,) = json.loads((folder / "report.sarif").read_text())["runs"]
    assert not run["invocations"][0]["executionSuccessful"]


@pytest.mark.parametrize("how", [name for name in DAMAGE if "no record" not in name])
def test_a_finding_that_the_log_has_lost_is_told_from_its_record(how: str, tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r")
    (folder / "summary.json").write_bytes(msgspec.json.encode(summary()))
    DAMAGE[how](folder)
    found = rebuilt(folder)
    assert [one.id for one in found.findings] == [ONE.id]
    assert found.exit_code == 3
    assert "the log is damaged, 1 finding" in run_text(found)


def test_a_finding_of_which_nothing_is_left_but_its_folder_is_named(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r")
    DAMAGE["the same, and no record beside it"](folder)
    found = rebuilt(folder)
    assert "the log is damaged, no finding could be read" in run_text(found)
    assert f"findings/{ONE.id}: missing from the log" in run_text(found)


@pytest.mark.parametrize(
    "events",
    [EVENTS, EVENTS[:3], EVENTS[:2], (STARTED,)],
    ids=["whole", "killed before its end", "killed in the chase", "killed at once"],
)
def test_the_report_of_a_sound_log_ends_well(events: tuple[object, ...], tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r")
    write_log(folder, *events)  # type: ignore[arg-type]
    if len(events) < 3:
        (folder / "findings" / ONE.id / "finding.json").unlink()
    assert run_command(["report", str(folder)]) == 0
    assert not rebuilt(folder).damaged


def test_a_resumed_run_takes_the_finding_back_and_tells_the_damage(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r")
    DAMAGE["lines that cannot be read"](folder)
    past = load_run_state(folder)
    assert list(past.findings) == [ONE.id]
    assert len(past.record.damaged) == 4


def test_what_a_kill_cut_short_before_a_resume_is_no_damage(tmp_path: Path) -> None:
    folder = run_of(tmp_path / "r")
    told = Progress(seconds=1.0, cases=1, steps=1, findings=0, rate=1.0)
    again = CaseRun(index=0, digest="d", source="corpus", outcome="clean", steps=1, seconds=0.1)
    write_log(folder, *EVENTS[:3], again, STARTED, told)
    change_lines(lambda lines: [*lines[:3], lines[3][:30] + b"\n", *lines[4:]])(folder)
    found = rebuilt(folder)
    assert (found.damaged, found.exit_code) == ((), 1)
    assert found.bad_entries == ("events.jsonl:4: not an event (cut short); left out",)


def test_killed_workers_are_told_in_every_report(tmp_path: Path) -> None:
    write_reports(tmp_path, summary(killed=3))
    words = "3 workers were killed from outside (signal 9), retried; out of memory?"
    for name in FORMATS.values():
        told = (tmp_path / name).read_text()
        assert ('"killed": 3' if name == "report.json" else words) in told
    write_reports(tmp_path, summary())
    for name in FORMATS.values():
        assert "killed from outside" not in (tmp_path / name).read_text()


def test_one_killed_worker_is_one(tmp_path: Path) -> None:
    assert "  1 worker was killed from outside (signal 9)" in run_text(summary(killed=1))


def test_a_damaged_run_is_written_into_every_report(tmp_path: Path) -> None:
    write_reports(tmp_path, summary(damaged=("events.jsonl:2: not an event",)))
    for name in FORMATS.values():
        assert "events.jsonl:2" in (tmp_path / name).read_text().replace("\\", "")
