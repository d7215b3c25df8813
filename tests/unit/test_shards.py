"""A run of several processes is taken up like any other."""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from fuzzgraph.campaign import RunFolder, join_shards, run_campaign
from fuzzgraph.campaign.export import no_export
from fuzzgraph.campaign.shards import resume_shards, shards_of
from fuzzgraph.errors import UsageError
from fuzzgraph.open_target import Opened
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import Event, FindingNew, RunSummary, Setup, finding_id
from fuzzgraph.run.spec import Budget, RunSpec
from tests.fakes import FakeRunner, FakeTarget, finding
from tests.unit.campaigns import many_bugs

ROOT = Path(__file__).parents[2]


class Killed(BaseException):
    """Stands for a kill: nothing in FuzzGraph catches it."""


def killed_shard(out: Path, shard: int, *, after: int) -> None:
    """A shard of forty cases that is killed after so many events."""
    left = [after]

    def emit(event: Event) -> None:
        left[0] -= 1
        if left[0] == 0:
            raise Killed

    plan = RunSpec(
        seed=1, budget=Budget(None, 40), out=str(out), shard=shard, shards=2, progress_seconds=0
    )
    opened = Opened(Setup(), FakeTarget(), FakeRunner(many_bugs), lambda: None)
    with pytest.raises(Killed):
        run_campaign(plan, emit, opened=opened, export=no_export)


def resuming(out: Path) -> Callable[[int], list[str]]:
    return lambda shard: [sys.executable, "-m", "tests.unit.resuming", str(out), str(shard)]


def found(out: Path) -> set[str]:
    logs = [event for log in out.glob("events-*.jsonl") for event in read_log(log)[0]]
    return {event.id for event in logs if isinstance(event, FindingNew)}


def test_shards_that_were_killed_go_on_in_one_process_each(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    for shard, after in ((0, 60), (1, 25)):
        killed_shard(tmp_path, shard, after=after)
    before = found(tmp_path)
    assert shards_of(tmp_path) == 2
    summary = resume_shards(tmp_path, 2, None, resuming(tmp_path))
    names = [one.id for one in summary.findings]
    assert before
    assert before <= set(names)
    assert len(names) == len(set(names))
    assert all(one.finding.confirmed for one in summary.findings)
    assert (summary.cases, summary.shards, summary.reason) == (80, 2, "examples")
    assert (tmp_path / "report.html").is_file()
    with pytest.raises(UsageError, match="the run is complete"):
        resume_shards(tmp_path, 2, None)


def test_two_resumes_of_one_run_are_refused(tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path).lock(),
        pytest.raises(UsageError, match="another run is using this folder"),
    ):
        resume_shards(tmp_path, 2, None)


def test_a_run_of_one_process_has_one_shard(tmp_path: Path) -> None:
    RunFolder(tmp_path).events.write_bytes(b"")
    assert shards_of(tmp_path) == 1


DAMAGE = [b"", b'{"reason":"\xff"}', b'{"a":' + b"[" * 100_000]


@pytest.mark.parametrize("content", DAMAGE, ids=["cut short", "no text", "nested endlessly"])
def test_a_damaged_summary_of_a_shard_is_named_and_costs_that_shard_only(
    content: bytes, tmp_path: Path
) -> None:
    whole = RunSummary(fuzzgraph="0", spec=RunSpec(seed=1), cases=7, bad_entries=("x.json: bad",))
    RunFolder(tmp_path, 1, 2).finish_run(whole)
    RunFolder(tmp_path, 0, 2).summary.write_bytes(content)
    summary = join_shards(tmp_path)
    assert summary is not None and summary.cases == 7
    assert summary.bad_entries == ("x.json: bad",)
    (line,) = summary.damaged
    assert line.startswith("summary-0.json: not a summary (")
    assert summary.exit_code == 3


@pytest.mark.parametrize("content", DAMAGE, ids=["cut short", "no text", "nested endlessly"])
def test_a_damaged_record_of_a_finding_explains_no_more_than_none(
    content: bytes, tmp_path: Path
) -> None:
    key = finding().key
    folder = RunFolder(tmp_path)
    folder.claim(finding_id(key))
    (folder.of(finding_id(key)) / "finding.json").write_bytes(content)
    assert folder.companions(key) is None
