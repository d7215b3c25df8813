"""The folder of somebody else's run leads nowhere: no path is taken from what it says."""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec
import pytest

from fuzzgraph.campaign import RunFolder
from fuzzgraph.campaign.reports import rebuilt
from fuzzgraph.campaign.resume import load_run_state
from fuzzgraph.errors import UsageError
from fuzzgraph.fleet.messages import FindingNotice, PollReply
from fuzzgraph.fleet.replica import Replica
from fuzzgraph.run.event_log import read_log
from fuzzgraph.run.events import (
    Event,
    FindingNew,
    FindingPursued,
    FindingRepeated,
    FindingWaiting,
    encode_event,
)
from fuzzgraph.strict_json import decode_json
from tests.unit.reporting.runs import STARTED, history, overrun, reported, write_log

ID = reported().id
EVENTS: dict[str, Event] = {
    "new": FindingNew(id=ID, finding=overrun(), case=history()),
    "waiting": FindingWaiting(id=ID, finding=overrun(), case=history()),
    "repeated": FindingRepeated(id=ID, digest="d", count=1),
    "pursued": FindingPursued(reported=reported()),
}
STRANGE = ["../../../ESCAPED", "..", "", "/tmp/x", "a/b-123456", f"{ID}\n", "x-12345g"]


def lines(event: str, name: str) -> bytes:
    line = encode_event(EVENTS[event])
    return line.replace(msgspec.json.encode(ID), msgspec.json.encode(name))


@pytest.mark.parametrize("name", STRANGE)
def test_an_id_that_is_none_becomes_no_path(name: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not one that FuzzGraph gives"):
        RunFolder(tmp_path).of(name)


def test_an_id_becomes_a_folder_below_the_findings(tmp_path: Path) -> None:
    assert RunFolder(tmp_path).of(ID) == tmp_path / "findings" / ID


@pytest.mark.parametrize("name", STRANGE)
@pytest.mark.parametrize("event", EVENTS)
def test_an_event_with_another_id_is_damaged(event: str, name: str, tmp_path: Path) -> None:
    (tmp_path / "events.jsonl").write_bytes(encode_event(STARTED) + lines(event, name))
    log = read_log(tmp_path / "events.jsonl")
    assert log.events == [STARTED] and len(log.damaged) == 1


@pytest.mark.parametrize("event", ["new", "waiting", "pursued"])
def test_an_id_of_another_finding_is_damaged(event: str, tmp_path: Path) -> None:
    other = reported(overrun("kv_indptr")).id
    (tmp_path / "events.jsonl").write_bytes(encode_event(STARTED) + lines(event, other))
    assert "does not belong to this finding" in read_log(tmp_path / "events.jsonl")[1][0]


@pytest.mark.parametrize("event", ["new", "pursued"])
def test_a_shard_writes_nothing_outside_the_folder_of_the_run(event: str, tmp_path: Path) -> None:
    out = tmp_path / "a" / "b" / "run"
    out.mkdir(parents=True)
    replica = Replica(out, 0, 1, {})
    replica.take(PollReply(lines=lines(event, "../../../ESCAPED")))
    assert not (tmp_path / "a" / "ESCAPED").exists()
    assert [path.name for path in out.iterdir()] == ["events.jsonl"]


def test_a_shard_with_a_right_id_writes_its_finding(tmp_path: Path) -> None:
    replica = Replica(tmp_path, 0, 1, {})
    replica.take(PollReply(lines=lines("new", ID), files={f"findings/{ID}/repro.py": b"pass\n"}))
    assert {path.name for path in RunFolder(tmp_path).of(ID).iterdir()} == {
        "found.json",
        "repro.py",
    }


@pytest.mark.parametrize("name", [f"findings/{ID}/..", "findings/../x.py", "findings/../../x"])
def test_a_shard_names_no_file_outside_a_finding(name: str, tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with contextlib.suppress(UsageError):
        Replica(out, 0, 1, {}).take(PollReply(files={name: b"x"}))
    assert {path.name for path in tmp_path.rglob("*")} <= {"run", "events.jsonl"}


def test_news_of_an_id_that_is_none_is_refused() -> None:
    with pytest.raises(ValueError, match="matching regex"):
        decode_json(b'{"id": "../x"}', FindingNotice)


@pytest.mark.parametrize("name", ["running.json", ".lock", "events.jsonl", f"findings/{ID}"])
def test_a_folder_with_a_link_is_neither_resumed_nor_reported(name: str, tmp_path: Path) -> None:
    secret = tmp_path / "secret"
    secret.write_text("mine")
    run = tmp_path / "run"
    write_log(run, STARTED)
    (run / name).parent.mkdir(exist_ok=True)
    (run / name).unlink(missing_ok=True)
    (run / name).symlink_to(secret)
    for read in (load_run_state, rebuilt):
        with pytest.raises(UsageError, match=r"is a link, and no run leaves links"):
            read(run)
    assert secret.read_text() == "mine"


def test_a_folder_that_is_reached_through_a_link_is_read(tmp_path: Path) -> None:
    write_log(tmp_path / "run", STARTED)
    (tmp_path / "latest").symlink_to(tmp_path / "run")
    assert rebuilt(tmp_path / "latest").reason == "killed"
    assert load_run_state(tmp_path / "latest").start == STARTED
