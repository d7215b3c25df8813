"""A run told from its event log alone: whole, killed, resumed, sharded, damaged."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fuzzgraph.campaign.reports import rebuilt, write_reports
from fuzzgraph.errors import UsageError
from fuzzgraph.reporting.formats import FORMATS
from fuzzgraph.reporting.html import html
from fuzzgraph.run.coverage import CoverageMap
from fuzzgraph.run.events import (
    CampaignFinished,
    Counted,
    Exported,
    FindingNew,
    FindingPursued,
    Progress,
    finding_id,
)
from tests.unit.reporting.runs import STARTED, history, overrun, reported, summary, write_log


def test_all_reports_come_from_the_event_log_alone(tmp_path: Path) -> None:
    write_log(tmp_path / "r", STARTED, CampaignFinished(summary=summary(reported())))
    found = rebuilt(tmp_path / "r")
    assert found == summary(reported())
    paths = write_reports(tmp_path / "r", found)
    assert {path.name for path in paths} == set(FORMATS.values())
    assert all(path.stat().st_size for path in paths)


def test_a_killed_run_is_told_up_to_its_last_event(tmp_path: Path) -> None:
    covered = CoverageMap()
    covered.add(["a", "b"])
    first, second = overrun("kv_indices"), overrun("page_table")
    write_log(
        tmp_path / "r",
        STARTED,
        FindingNew(id=finding_id(first.key), finding=first, case=history()),
        FindingPursued(reported=reported(first)),
        FindingNew(
            id=finding_id(second.key),
            finding=msgspec.structs.replace(second, confirmed=""),
            case=history(),
        ),
        Counted(coverage=covered.record()),
        Progress(seconds=9.0, cases=90, steps=180, findings=2, rate=10.0, pairs=1),
    )
    found = rebuilt(tmp_path / "r")
    assert (found.reason, found.cases, found.seconds) == ("killed", 90, 9.0)
    assert [one.finding.confirmed for one in found.findings] == ["3/3", ""]
    assert (found.coverage.pairs, found.beyond, found.exit_code) == (1, ("modes: draft",), 1)
    assert "unconfirmed" in html(found)


def test_what_a_killed_run_found_is_kept_when_it_goes_on(tmp_path: Path) -> None:
    first, second = overrun("kv_indices"), overrun("page_table")
    write_log(
        tmp_path / "r",
        STARTED,
        FindingPursued(reported=reported(first)),
        STARTED,
        Exported(reported=reported(second)),
    )
    names = [one.finding.buffer for one in rebuilt(tmp_path / "r").findings]
    assert names == ["kv_indices", "page_table"]


def test_the_shards_of_a_run_are_joined(tmp_path: Path) -> None:
    one, two = reported(overrun("a")), reported(overrun("b"))
    write_log(
        tmp_path / "r", STARTED, CampaignFinished(summary=summary(one)), name="events-0.jsonl"
    )
    write_log(
        tmp_path / "r", STARTED, CampaignFinished(summary=summary(two)), name="events-1.jsonl"
    )
    found = rebuilt(tmp_path / "r")
    assert (found.cases, len(found.findings)) == (1200, 2)
    assert found.coverage.cases["mode decode"] == 2


def test_a_line_that_a_kill_cut_short_is_named_and_is_no_damage(tmp_path: Path) -> None:
    write_log(tmp_path / "r", STARTED, CampaignFinished(summary=summary()))
    with (tmp_path / "r" / "events.jsonl").open("ab") as log:
        log.write(b'{"event":"campaign_fin')
    found = rebuilt(tmp_path / "r")
    assert (found.cases, found.damaged, found.exit_code) == (600, (), 0)
    assert found.bad_entries == ("events.jsonl:3: not an event (cut short); left out",)
    assert "events.jsonl:3: not an event" in html(found)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "holds no events.jsonl"),
        (b"", "contains no run"),
        (b"not JSON\n", "not an event"),
    ],
    ids=["no log", "an empty log", "nothing readable"],
)
def test_a_folder_that_tells_of_no_run_is_refused(
    tmp_path: Path, content: bytes | None, message: str
) -> None:
    if content is not None:
        (tmp_path / "events.jsonl").write_bytes(content)
    with pytest.raises(UsageError, match=message):
        rebuilt(tmp_path)
