"""What happens in a campaign, as typed records, and what is left at its end.

The campaign emits these, `reporting` and the pytest plugin consume them. On disk
they are JSON lines. Nothing here decides or prints anything.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Literal, TypeAlias

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.errors import UsageError
from fuzzgraph.finding import Finding, FindingKey

__all__ = [
    "CampaignFinished",
    "CampaignStarted",
    "CaseRun",
    "Emit",
    "Event",
    "Export",
    "ExportKind",
    "Exported",
    "FindingFlaky",
    "FindingNew",
    "FindingRepeated",
    "Outcome",
    "Progress",
    "Reason",
    "ReportedFinding",
    "RunSummary",
    "Setup",
    "Shrunk",
    "Source",
    "decode_event",
    "encode_event",
    "finding_id",
    "is_full_rate",
    "read_events",
]

Source = Literal["corpus", "generated"]
Outcome = Literal["clean", "finding", "skipped", "nondeterministic"]
ExportKind = Literal["script", "pytest", "issue"]
Reason = Literal["time", "examples", "findings", "interrupted", "corpus", "failed"]


def finding_id(key: FindingKey) -> str:
    """Name of a finding, fit for a file: oracle, buffer, mode and six digits of its key.

    >>> finding_id(("footprint", "writes", "builtin", "kv_indices", "decode"))
    'footprint-kv_indices-decode-f4df28'
    """
    oracle, _, _, buffer, mode = key
    tail = hashlib.sha256("\0".join(key).encode()).hexdigest()[:6]
    words = [re.sub(r"[^A-Za-z0-9_.]+", "_", word)[:40] for word in (oracle, buffer, mode) if word]
    return "-".join([*words, tail])


def is_full_rate(rate: str) -> bool:
    """Whether a rate such as '3/3' says every time.

    >>> is_full_rate("3/3"), is_full_rate("2/3"), is_full_rate("")
    (True, False, False)
    """
    hits, _, times = rate.partition("/")
    return bool(times) and hits == times


class Setup(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What a case is run on."""

    target: str = "builtin"
    release: str = ""
    """Release of the engine, e.g. '0.5.12'; '' for the installed one."""
    fault: str = ""
    """Name of the planted fault; '' for none."""
    device: str = "cpu"
    graphs: str = "recorder"
    strict_nan: bool = False
    """Whether each step also runs with NaN in all memory that its batch does not own."""


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A repro written to disk."""

    kind: ExportKind
    path: str
    rate: str = ""
    """How often it failed when it was executed, e.g. '3/3'; '' where it is only text."""
    error: str = ""
    """Why there is none; the finding stands without it."""


class ReportedFinding(msgspec.Struct, frozen=True, kw_only=True):
    """A finding with the case that shows it."""

    id: str
    finding: Finding
    """As seen on `case`; `confirmed` holds the rate in fresh sessions."""
    case: Case
    """The shrunk case, or the one that was found where shrinking did not hold."""
    digest: str
    also: tuple[Finding, ...] = ()
    """Other clauses that the same case breaks."""
    source: Source = "generated"
    after_cases: int = 0
    after_seconds: float = 0.0
    shrink_tries: int = 0
    shrink_seconds: float = 0.0
    case_path: str = ""
    exports: tuple[Export, ...] = ()
    replay: str = ""
    """The one command that replays it."""
    flaky: bool = False
    """Computed: it was tried in fresh sessions and did not show in every one."""

    def __post_init__(self) -> None:
        rate = self.finding.confirmed
        msgspec.structs.force_setattr(self, "flaky", bool(rate) and not is_full_rate(rate))


class RunSummary(msgspec.Struct, frozen=True, kw_only=True):
    """A campaign in one record: the content of `summary.json`."""

    fuzzgraph: str
    setup: Setup
    seed: int
    profile: str = "ci"
    shards: int = 1
    reason: Reason = "time"
    seconds: float = 0.0
    """Of the search, with the shrinking in between."""
    total_seconds: float = 0.0
    """With what came after it: more shrinking, writing and executing repros."""
    cases: int = 0
    corpus_cases: int = 0
    steps: int = 0
    skipped: int = 0
    nondeterministic: int = 0
    findings: tuple[ReportedFinding, ...] = ()
    repeats: dict[str, int] = {}
    """Finding id -> how many further cases showed it."""
    beside: dict[str, tuple[Finding, ...]] = {}
    """Finding id of another shard -> what was seen only beside it."""
    bad_entries: tuple[str, ...] = ()
    """Corpus entries that could not be read, one line each."""
    error: str = ""
    """Why the run itself failed; '' if it did not."""
    out: str = ""
    """Folder of the run."""
    rate: float = 0.0
    """Computed: cases per second of the search."""
    exit_code: int = 0
    """Computed: 0 nothing found, 1 findings, 3 the run failed."""

    def __post_init__(self) -> None:
        rate = round(self.cases / self.seconds, 1) if self.seconds else 0.0
        msgspec.structs.force_setattr(self, "rate", rate)
        msgspec.structs.force_setattr(
            self, "exit_code", 3 if self.error else 1 if self.findings else 0
        )


def _snake(name: str) -> str:
    return re.sub(r"(?<!^)(?=[A-Z])", "_", name).lower()


class _Event(msgspec.Struct, frozen=True, kw_only=True, tag_field="event", tag=_snake):
    shard: int = 0


class CampaignStarted(_Event, frozen=True, kw_only=True):
    setup: Setup
    seed: int
    shards: int = 1
    profile: str = "ci"
    seconds: float | None = None
    examples: int | None = None
    max_findings: int | None = None
    corpus_cases: int = 0
    out: str = ""


class CaseRun(_Event, frozen=True, kw_only=True):
    """One case came back."""

    index: int
    digest: str
    source: Source
    outcome: Outcome
    steps: int
    seconds: float
    note: str = ""


class FindingNew(_Event, frozen=True, kw_only=True):
    """First sight of a finding, before it is confirmed and shrunk."""

    id: str
    finding: Finding
    case: Case


class FindingRepeated(_Event, frozen=True, kw_only=True):
    id: str
    digest: str


class FindingFlaky(_Event, frozen=True, kw_only=True):
    """It did not show in every fresh session."""

    id: str
    rate: str


class Shrunk(_Event, frozen=True, kw_only=True):
    id: str
    before: str
    after: str
    steps: int
    requests: int
    tries: int
    seconds: float


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


class CampaignFinished(_Event, frozen=True, kw_only=True):
    summary: RunSummary


Event: TypeAlias = (
    CampaignStarted
    | CaseRun
    | FindingNew
    | FindingRepeated
    | FindingFlaky
    | Shrunk
    | Exported
    | Progress
    | CampaignFinished
)
Emit = Callable[[Event], None]

_DECODER: msgspec.json.Decoder[Event] = msgspec.json.Decoder(Event)


def encode_event(event: Event) -> bytes:
    """One JSON line, newline included."""
    return msgspec.json.encode(event) + b"\n"


def decode_event(line: bytes | str) -> Event:
    """The record of one line.

    Raises:
        UsageError: the line is no event of this FuzzGraph.
    """
    try:
        return _DECODER.decode(line)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise UsageError(
            f"events: not an event of this FuzzGraph ({error}). Use the one that wrote the file."
        ) from None


def read_events(path: Path) -> Iterator[Event]:
    """Events of a file, in order; a last line cut short by a kill is left out."""
    for line in path.read_bytes().splitlines(keepends=True):
        if line.endswith(b"\n") and line.strip():
            yield decode_event(line)
