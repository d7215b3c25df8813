"""What happens in a campaign, as typed records.

The campaign emits these, `reporting` and the pytest plugin consume them. On disk
they are JSON lines, and every report can be made again from them alone. Nothing here decides or
prints anything; what is left at the end are `records`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any, Literal, TypeAlias

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.run.environment import UNKNOWN, Environment
from fuzzgraph.run.records import (
    Counts,
    Export,
    ExportKind,
    FindingId,
    Left,
    NamedCounts,
    Reason,
    ReportedFinding,
    RunSummary,
    Source,
    Status,
    check_id,
    finding_id,
    is_full_rate,
)
from fuzzgraph.run.spec import RunSpec, Setup
from fuzzgraph.strict_json import decode_json

__all__ = [
    "CampaignFinished",
    "CampaignStarted",
    "CaseKept",
    "CaseRun",
    "Counted",
    "Emit",
    "Event",
    "Export",
    "ExportKind",
    "Exported",
    "FindingAttached",
    "FindingFlaky",
    "FindingNew",
    "FindingPursued",
    "FindingRepeated",
    "FindingWaiting",
    "Left",
    "Noted",
    "Outcome",
    "Progress",
    "Reason",
    "ReportedFinding",
    "RunSummary",
    "Setup",
    "Shrunk",
    "Source",
    "Status",
    "decode_event",
    "encode_event",
    "finding_id",
    "is_full_rate",
    "parse_event",
]

Outcome = Literal["clean", "finding", "skipped", "nondeterministic"]


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_snake):
    shard: int = 0


class CampaignStarted(_Event, frozen=True, kw_only=True):
    spec: RunSpec
    """What was asked; a resumed run goes on with it."""
    corpus_cases: int = 0
    started: str = ""
    """UTC, ISO 8601."""
    fuzzgraph: str = ""
    beyond: tuple[str, ...] = ()
    """What the target cannot express."""
    environment: Environment = UNKNOWN
    """Of the process that runs the engine."""


class CaseRun(_Event, frozen=True, kw_only=True):
    """One case came back."""

    index: int
    digest: str
    source: Source
    outcome: Outcome
    steps: int
    seconds: float
    note: str = ""


class CaseKept(_Event, frozen=True, kw_only=True):
    """A case that covers a pair of dimension values which no case of the run had: worth sharing."""

    case: Case


class _Seen(_Event, frozen=True, kw_only=True):
    """A finding and the case that showed it first."""

    id: str
    finding: Finding
    case: Case
    also: tuple[Finding, ...] = ()
    """What else the case showed."""
    source: Source = "generated"
    after_cases: int = 0
    """Cases run up to here, this one included."""
    after_seconds: float = 0.0
    took: float = 0.0
    """Seconds of running the case."""

    def __post_init__(self) -> None:
        check_id(self.id, self.finding)


class FindingNew(_Seen, frozen=True, kw_only=True):
    """First sight of a finding, before it is confirmed and shrunk."""


class FindingWaiting(_Seen, frozen=True, kw_only=True):
    """Seen only in cases that show another finding, which is not shrunk yet and may explain it."""


class FindingAttached(_Event, frozen=True, kw_only=True):
    """A finding never seen without another one: it is reported with that one."""

    id: FindingId
    """Of the other one, which this shard or another reports."""
    finding: Finding


class FindingRepeated(_Event, frozen=True, kw_only=True):
    id: FindingId
    digest: str
    count: int
    """Further cases that have shown the finding so far, this one included."""


class FindingFlaky(_Event, frozen=True, kw_only=True):
    """It did not show in every fresh session."""

    id: FindingId
    rate: str


class Shrunk(_Event, frozen=True, kw_only=True):
    id: FindingId
    before: str
    after: str
    steps: int
    requests: int
    tries: int
    seconds: float


class FindingPursued(_Event, frozen=True, kw_only=True):
    """Confirmed, shrunk and saved; its repros follow at the end."""

    reported: ReportedFinding


class Exported(_Event, frozen=True, kw_only=True):
    """A finding is done: shrunk, saved, exported."""

    reported: ReportedFinding


class Progress(Counts, frozen=True, kw_only=True, tag_field="event", tag=_snake):
    """The figures of the run, about once a second."""

    shard: int = 0
    seconds: float
    findings: int
    """Findings of this shard, reported or still to be worked on."""
    rate: float
    """Cases per second over the last interval."""
    doing: str = "fuzzing"
    seconds_left: float | None = None
    examples_left: int | None = None
    dimensions: int = 0
    """Dimension values covered so far."""
    pairs: int = 0
    """Pairs of them covered by one case."""
    block: int = 0
    """Number of the block of generated cases; a resumed run draws it again."""
    drawn: int = 0
    """Cases of that block that had their turn; a resumed run passes over them."""
    ahead: tuple[str, ...] = ()
    """Digests of cases that were run before their turn."""


class Counted(NamedCounts, frozen=True, kw_only=True, tag_field="event", tag=_snake):
    """All that was counted and covered so far; written ever more rarely, and at the end."""

    shard: int = 0


class Noted(_Event, frozen=True, kw_only=True):
    """Lines for the report on what is not a finding."""

    bad_entries: tuple[str, ...] = ()
    """Entries of corpus, ledger, baseline or database that could not be used."""
    damaged: tuple[str, ...] = ()
    """Parts of the run's own record that could not be read."""
    mended: tuple[str, ...] = ()
    """Tolerated entries of the ledger whose case does not fail any more."""


class CampaignFinished(_Event, frozen=True, kw_only=True):
    summary: RunSummary


Event: TypeAlias = (
    CampaignStarted
    | CaseRun
    | CaseKept
    | FindingNew
    | FindingRepeated
    | FindingWaiting
    | FindingAttached
    | FindingFlaky
    | Shrunk
    | FindingPursued
    | Exported
    | Progress
    | Counted
    | Noted
    | CampaignFinished
)
Emit = Callable[[Event], None]

_EVENT: Any = Event
"""As a value: mypy does not accept a union as an argument of type `type`."""


def encode_event(event: Event) -> bytes:
    """One JSON line, newline included."""
    return msgspec.json.encode(event) + b"\n"


def parse_event(line: bytes | str) -> Event:
    """The record of one line.

    Raises:
        one of `errors.UNREADABLE`: the line is not an event of this FuzzGraph.
    """
    event: Event = decode_json(line, _EVENT)
    return event


def decode_event(line: bytes | str) -> Event:
    """The same for a line that the caller gives.

    Raises:
        UsageError: the line is not an event of this FuzzGraph.
    """
    try:
        return parse_event(line)
    except UNREADABLE as error:
        raise UsageError(
            f"events: not an event of this FuzzGraph ({error}). Use the one that wrote the file."
        ) from None
