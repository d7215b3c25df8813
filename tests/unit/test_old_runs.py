"""A run folder that an older FuzzGraph wrote: one clear line, and nothing of it is changed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from fuzzgraph.cli.entry import run_command
from fuzzgraph.errors import UsageError
from fuzzgraph.fleet.run import fleet_of
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import encode_event
from tests.unit.reporting.runs import STARTED

OLD = Path(__file__).parent / "old_run"


def old_run(folder: Path, log: str = "events.jsonl") -> Path:
    shutil.copy(OLD / "events.jsonl", folder / log)
    return folder


@pytest.mark.parametrize("verb", ["resume", "report"])
@pytest.mark.parametrize("log", ["events.jsonl", "events-0.jsonl"], ids=["whole", "shards"])
def test_an_older_run_is_refused_in_one_line(
    verb: str, log: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run_command([verb, str(old_run(tmp_path, log))]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "was written by an older FuzzGraph (0.1.0)" in line
    assert [path.name for path in tmp_path.iterdir()] == [log]


def test_an_older_fleets_run_is_refused_in_one_line(tmp_path: Path) -> None:
    shutil.copy(OLD / "fleet.json", tmp_path)
    with pytest.raises(UsageError, match="damaged, or written by another FuzzGraph"):
        fleet_of(tmp_path)


def test_a_run_of_today_is_read(tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(encode_event(STARTED))
    assert read_log(tmp_path / "events.jsonl").events == [STARTED]
