"""What is left of a campaign: its setup, its findings with their cases, its figures.

`events` carry these while it runs; on disk they are `finding.json` and `summary.json`.
"""

from __future__ import annotations

import hashlib
import re
from typing import Annotated, Literal

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.finding import Finding, FindingKey
from fuzzgraph.run.coverage import Coverage
from fuzzgraph.run.environment import UNKNOWN, Environment
from fuzzgraph.run.spec import Profile, RunSpec, Setup
from fuzzgraph.text.escaping import WEB_LINK

__all__ = [
    "Counts",
    "Export",
    "ExportKind",
    "FindingId",
    "Left",
    "NamedCounts",
    "Reason",
    "ReportedFinding",
    "RunSummary",
    "Setup",
    "Source",
    "Status",
    "check_id",
    "finding_id",
    "is_full_rate",
]

Source = Literal["corpus", "generated"]
ExportKind = Literal["script", "pytest", "issue"]
Reason = Literal["time", "examples", "findings", "interrupted", "corpus", "failed", "killed"]
Left = Literal["confirm", "shrink", "export"]
"""What the end of the budget left undone."""
Status = Literal["new", "known", "tolerated"]
"""new: in neither. known: the baseline has it. tolerated: the ledger does,
with an issue and a day on which that ends."""


def finding_id(key: FindingKey) -> str:
    """Name of a finding, fit for a file: oracle, buffer, mode and six digits of its key.

    >>> finding_id(("footprint", "writes", "builtin", "kv_indices", "decode"))
    'footprint-kv_indices-decode-f4df28'
    """
    oracle, _, _, buffer, mode = key
    tail = hashlib.sha256("\0".join(key).encode()).hexdigest()[:6]
    words = [re.sub(r"[^A-Za-z0-9_.]+", "_", word)[:40] for word in (oracle, buffer, mode) if word]
    return "-".join([*words, tail])


FindingId = Annotated[str, msgspec.Meta(pattern=r"\A(?:[A-Za-z0-9_.]+-)*[0-9a-f]{6}\Z")]
"""The form of what `finding_id` gives: no way out of a folder, nothing that a report would run."""


def check_id(told: str, finding: Finding) -> None:
    """Refuse a record whose id is not that of its finding's key: folders are named by it.

    Raises:
        ValueError: it is another one.
    """
    right = finding_id(finding.key)
    if told != right:
        raise ValueError(f"id {told!r} does not belong to this finding, whose id is {right!r}")


def is_full_rate(rate: str) -> bool:
    """Whether a rate such as '3/3' says every time.

    >>> is_full_rate("3/3"), is_full_rate("2/3"), is_full_rate("")
    (True, False, False)
    """
    hits, _, times = rate.partition("/")
    return bool(times) and hits == times


class Export(msgspec.Struct, frozen=True, kw_only=True):
    """A repro written to disk."""

    kind: ExportKind
    path: str
    rate: str = ""
    """How often it failed when it was executed, e.g. '3/3'; '' where it is only text."""
    error: str = ""
    """Why it was not written or, with a path, why it could not be executed."""
    cut_off: bool = False
    """Whether the end of the budget cut its runs off; the rate is of those that had ended."""


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
    status: Status = "new"
    issue: Annotated[str, msgspec.Meta(pattern=rf"\A({WEB_LINK})?\Z")] = ""
    """Where it is being dealt with, as the ledger says; '' where it says nothing."""
    left: tuple[Left, ...] = ()
    """What there was no time for; `fuzzgraph resume` on the folder of the run does it."""
    flaky: bool = False
    """Computed: it was tried in fresh sessions and did not show in every one."""

    def __post_init__(self) -> None:
        check_id(self.id, self.finding)
        rate = self.finding.confirmed
        msgspec.structs.force_setattr(self, "flaky", bool(rate) and not is_full_rate(rate))


class Counts(msgspec.Struct, frozen=True, kw_only=True):
    """What a run has counted; the counts of its shards add up to those of the run."""

    cases: int = 0
    corpus_cases: int = 0
    steps: int = 0
    skipped: int = 0
    nondeterministic: int = 0
    unrepeatable: int = 0
    """Steps whose late copies were not judged, because a step did not repeat itself."""
    deaths: int = 0
    """Times the engine's process died or hung; 0 where it has none of its own."""
    killed: int = 0
    """Times it was killed from outside (signal 9), by a person or for want of memory; the case was
    run again."""


class NamedCounts(Counts, frozen=True, kw_only=True):
    """The same with what is counted by name, too much to be written every second."""

    skips: dict[str, int] = {}
    """Why cases were skipped -> how many; the rarest are put together."""
    fallbacks: dict[str, int] = {}
    """Triton kernel and reason -> launches that Triton's own interpreter ran, not the lanes."""
    unchecked: dict[str, int] = {}
    """Why accesses and races of Triton kernels were not checked -> their launches."""
    unguarded: dict[str, int] = {}
    """Stage -> bytes that a device's allocator handed out in it and no guard covers."""
    late_copies: dict[str, int] = {}
    """Line of the engine -> copies of pinned memory, and work of side streams, that ran late."""
    repeats: dict[FindingId, int] = {}
    """Finding id -> how many further cases showed it."""
    quarantined: dict[str, int] = {}
    """Ledger entry -> how many cases it kept from running."""
    coverage: Coverage = Coverage()


_OF_SPEC = ("setup", "seed", "profile", "shards", "only_new", "out")


class RunSummary(NamedCounts, frozen=True, kw_only=True):
    """A campaign in one record: the content of `summary.json`."""

    fuzzgraph: str
    spec: RunSpec
    started: str = ""
    """When it began by the wall clock, UTC, ISO 8601; labels a night, measures nothing."""
    reason: Reason = "time"
    seconds: float = 0.0
    """Of the search, with the shrinking in between."""
    total_seconds: float = 0.0
    """With what came after it: more shrinking, writing and executing repros."""
    environment: Environment = UNKNOWN
    """Of the process that ran the engine; of the first one where there were several."""
    beyond: tuple[str, ...] = ()
    """What the target cannot express, so that nothing like it was drawn."""
    findings: tuple[ReportedFinding, ...] = ()
    beside: dict[FindingId, tuple[Finding, ...]] = {}
    """Finding id of another shard -> what was seen only beside it."""
    mended: tuple[str, ...] = ()
    """Tolerated entries whose case was run and did not fail, one line each."""
    bad_entries: tuple[str, ...] = ()
    """Entries of corpus, ledger or baseline that could not be used, and lines of the log that a
    kill cut short, one line each."""
    damaged: tuple[str, ...] = ()
    """Parts of the run's own record that could not be read, one line each: what is told here is not
    all that there was."""
    cut_off: str = ""
    """Digest of the case that the end of the budget cut off; a resumed run begins with it."""
    error: str = ""
    """Why the run itself failed; '' if it did not."""
    setup: Setup = Setup()
    """Computed, as are the five after it: of `spec`, for whoever reads the file."""
    seed: int = 0
    profile: Profile = "ci"
    shards: int = 1
    only_new: bool = False
    out: str = ""
    rate: float = 0.0
    """Computed: cases per second of the search."""
    exit_code: int = 0
    """Computed: 0 nothing found that counts, 1 findings that do, 3 the run failed, its record is
    damaged, it was killed before anything was found, or no case was checked."""

    def __post_init__(self) -> None:
        for name in _OF_SPEC:
            msgspec.structs.force_setattr(self, name, getattr(self.spec, name))
        rate = round(self.cases / self.seconds, 1) if self.seconds else 0.0
        msgspec.structs.force_setattr(self, "rate", rate)
        msgspec.structs.force_setattr(self, "exit_code", self._exit_code())

    def _exit_code(self) -> int:
        if self.error or self.damaged or self.reason == "failed":
            return 3
        if any(map(self.counts, self.findings)):
            return 1
        return 3 if self.reason == "killed" or not self.checked else 0

    @property
    def checked(self) -> int:
        """Cases that the engine ran: a run without one says nothing of it."""
        return self.cases - self.skipped

    def counts(self, reported: ReportedFinding) -> bool:
        """Whether a finding decides the exit code: not tolerated, and new where only that is asked.

        A tolerated one never does; a known one only without `only_new`.
        """
        return reported.status == "new" or (reported.status == "known" and not self.only_new)
