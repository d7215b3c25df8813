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
from fuzzgraph.coverage import Coverage
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.finding import Finding
from fuzzgraph.records import (
    Export,
    ExportKind,
    FindingId,
    Left,
    Reason,
    ReportedFinding,
    RunSummary,
    Source,
    Status,
    check_id,
    finding_id,
    is_full_rate,
)
from fuzzgraph.run_spec import RunSpec, Setup
from fuzzgraph.strict_json import decode_json

__all__ = [
    "CampaignFinished",
    "CampaignStarted",
    "CaseKept",
    "CaseRun",
    "CoverageSeen",
    "Emit",
    "Event",
    "Export",
    "ExportKind",
    "Exported",
    "FindingFlaky",
    "FindingNew",
    "FindingPursued",
    "FindingRepeated",
    "FindingWaiting",
    "Left",
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


class FindingNew(_Event, frozen=True, kw_only=True):
    """First sight of a finding, before it is confirmed and shrunk."""

    id: str
    finding: Finding
    case: Case

    def __post_init__(self) -> None:
        check_id(self.id, self.finding)


class FindingWaiting(_Event, frozen=True, kw_only=True):
    """Seen only beside one that is not shrunk yet, which may explain it."""

    id: str
    finding: Finding
    case: Case
    beside: tuple[Finding, ...] = ()
    """What else the case showed."""

    def __post_init__(self) -> None:
        check_id(self.id, self.finding)


class FindingRepeated(_Event, frozen=True, kw_only=True):
    id: FindingId
    digest: str


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


class Progress(_Event, frozen=True, kw_only=True):
    seconds: float
    cases: int
    steps: int
    findings: int
    rate: float
    """Cases per second over the last interval."""
    doing: str = "fuzzing"
    seconds_left: float | None = None
    examples_left: int | None = None
    skipped: int = 0
    dimensions: int = 0
    """Dimension values covered so far."""
    pairs: int = 0
    """Pairs of them covered by one case."""
    deaths: int = 0
    killed: int = 0
    corpus_cases: int = 0
    nondeterministic: int = 0
    block: int = 0
    """Number of the block of generated cases; a resumed run draws it again."""
    drawn: int = 0
    """Cases of that block that had their turn; a resumed run passes over them."""
    ahead: tuple[str, ...] = ()
    """Digests of cases that were run before their turn."""
    unchecked: dict[str, int] = {}
    """Why nobody looked at the accesses and races of Triton kernels -> their launches."""


class CoverageSeen(_Event, frozen=True, kw_only=True):
    """All that was covered so far; told ever more rarely, and at the end."""

    coverage: Coverage


class CampaignFinished(_Event, frozen=True, kw_only=True):
    summary: RunSummary


Event: TypeAlias = (
    CampaignStarted
    | CaseRun
    | CaseKept
    | FindingNew
    | FindingRepeated
    | FindingWaiting
    | FindingFlaky
    | Shrunk
    | FindingPursued
    | Exported
    | Progress
    | CoverageSeen
    | CampaignFinished
)
Emit = Callable[[Event], None]

_EVENT: Any = Event
"""As a value: for mypy a union is no type that a function could be handed."""


def encode_event(event: Event) -> bytes:
    """One JSON line, newline included."""
    return msgspec.json.encode(event) + b"\n"


def parse_event(line: bytes | str) -> Event:
    """The record of one line.

    Raises:
        one of `errors.UNREADABLE`: the line is no event of this FuzzGraph.
    """
    event: Event = decode_json(line, _EVENT)
    return event


def decode_event(line: bytes | str) -> Event:
    """The same for a line that the caller gives.

    Raises:
        UsageError: the line is no event of this FuzzGraph.
    """
    try:
        return parse_event(line)
    except UNREADABLE as error:
        raise UsageError(
            f"events: not an event of this FuzzGraph ({error}). Use the one that wrote the file."
        ) from None
