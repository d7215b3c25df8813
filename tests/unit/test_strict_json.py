"""JSON of others: one shape, every key once, in every file that is read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from fuzzgraph import fleet
from fuzzgraph.baseline import known_of, load_baseline
from fuzzgraph.campaign import RunFolder
from fuzzgraph.case import decode_case, encode_case
from fuzzgraph.errors import UNREADABLE, InvalidCase, UsageError
from fuzzgraph.fleet.messages import PollReply, ShardSpec
from fuzzgraph.fleet.run import FleetRecord, fleet_of
from fuzzgraph.run.events import decode_event, encode_event
from fuzzgraph.run.records import RunSummary
from fuzzgraph.run.spec import RunSpec
from fuzzgraph.strict_json import decode_json
from tests.fakes import case
from tests.unit.reporting.runs import STARTED, overrun, reported, summary


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 1}',
        '{"a": 1, "\\u0061": 2}',
        '{"outer": {"a": 1, "b": 2, "a": 3}}',
        '[{"deep": [{"a": 1, "a": 1}]}]',
    ],
    ids=["the same value", "written in two ways", "in an object within", "in a list within"],
)
def test_a_key_that_stands_twice_is_refused(text: str) -> None:
    for given in (text, text.encode()):
        with pytest.raises(ValueError, match="'a' stands twice"):
            decode_json(given)


def test_a_key_that_stands_once_in_each_of_two_objects_is_none_too_many() -> None:
    assert decode_json(b'[{"a": 1, "b": {"a": 2}}, {"a": 3}]') == [
        {"a": 1, "b": {"a": 2}},
        {"a": 3},
    ]


@pytest.mark.parametrize("text", [b"{", b'{"a": NaN}', b'"\xff"', b"[" * 100_000, b'{"seed": "x"}'])
def test_what_is_no_json_of_the_shape_is_refused(text: bytes) -> None:
    with pytest.raises(UNREADABLE):
        decode_json(text, RunSummary)


def doubled(text: bytes) -> bytes:
    """The same with its first key twice."""
    start = text.index(b'"')
    first, _, _ = text[start:].partition(b",")
    return text[:start] + first + b"," + text[start:]


def read_baseline(folder: Path, text: bytes) -> None:
    path = folder / "baseline.jsonl"
    path.write_bytes(text)
    bad = load_baseline(path).bad_lines
    if bad:
        raise UsageError(bad[0])


def read_companions(folder: Path, text: bytes) -> None:
    run, key = RunFolder(folder), overrun().key
    run.of(reported().id).mkdir(parents=True, exist_ok=True)
    (run.of(reported().id) / "finding.json").write_bytes(text)
    if run.companions(key) is None:
        raise UsageError("stands twice")


def read_shard_summary(folder: Path, text: bytes) -> None:
    (folder / "summary-0.json").write_bytes(text)
    if bad := RunFolder(folder).shard_summaries()[1]:
        raise UsageError(bad[0])


def read_fleet(folder: Path, text: bytes) -> None:
    (folder / "fleet.json").write_bytes(text)
    fleet_of(folder)


KNOWN = known_of([reported()], "2026-01-01")[reported().id]
READERS: dict[str, tuple[Callable[[Path, bytes], object], bytes]] = {
    "a case": (lambda folder, text: decode_case(text), encode_case(case(1))),
    "an event": (lambda folder, text: decode_event(text), encode_event(STARTED)),
    "a baseline": (read_baseline, msgspec.json.encode(KNOWN)),
    "a finding": (read_companions, msgspec.json.encode(reported())),
    "a shard's summary": (read_shard_summary, msgspec.json.encode(summary())),
    "a fleet's record": (
        read_fleet,
        msgspec.json.encode(FleetRecord(run="r", address="", spec=RunSpec())),
    ),
    "an order": (
        lambda folder, text: decode_json(text, ShardSpec),
        msgspec.json.encode(ShardSpec(run="r", spec=RunSpec())),
    ),
    "a batch": (
        lambda folder, text: decode_json(text, PollReply),
        msgspec.json.encode(PollReply(done=True)),
    ),
}


@pytest.mark.parametrize("kind", READERS)
def test_every_file_that_is_read_refuses_a_key_that_stands_twice(kind: str, tmp_path: Path) -> None:
    read, good = READERS[kind]
    read(tmp_path, good)
    with pytest.raises((UsageError, ValueError), match="stands twice"):
        read(tmp_path, doubled(good))


def test_no_module_reads_json_past_the_strict_reader() -> None:
    """By default: a new place that decodes by itself has to say here why it may."""
    package = Path(fleet.__file__).parents[1]
    past = {
        str(path.relative_to(package))
        for path in package.rglob("*.py")
        if any(
            word in path.read_text() for word in ("json.decode(", "json.loads(", "json.Decoder(")
        )
    }
    assert past == {"strict_json.py"}


def test_a_case_with_a_key_twice_is_refused_in_one_line() -> None:
    with pytest.raises(InvalidCase, match=r"^mine: not valid JSON \(the key 'steps' stands twice"):
        decode_case(encode_case(case(1)).replace(b'"steps":', b'"steps":[],"steps":'), "mine")
