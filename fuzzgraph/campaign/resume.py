"""Takes up a run where a kill left it, from its event log and the files of its folder.

Nothing that was seen is lost: a finding is in the log before it is worked on, one that waits for
another is in the log too, and the case at hand was on disk before it was run.
"""

from __future__ import annotations

import shlex
from dataclasses import dataclass, field
from pathlib import Path

import msgspec

from fuzzgraph.campaign.folder import RunFolder, refuse_links
from fuzzgraph.campaign.untold import untold
from fuzzgraph.case import Case, digest, load_case
from fuzzgraph.coverage import Coverage
from fuzzgraph.errors import InvalidCase, UsageError
from fuzzgraph.event_log import read_log
from fuzzgraph.events import (
    CampaignFinished,
    CampaignStarted,
    CaseRun,
    CoverageSeen,
    Event,
    Exported,
    FindingNew,
    FindingPursued,
    FindingRepeated,
    FindingWaiting,
    Progress,
    Reason,
    ReportedFinding,
    RunSummary,
)
from fuzzgraph.run_spec import RunSpec

__all__ = [
    "RunState",
    "Trusted",
    "nothing_to_resume",
    "free_empty_claims",
    "load_run_state",
    "resumed_plan",
]


@dataclass(slots=True)
class RunState:
    """What a run had done before it was killed."""

    start: CampaignStarted
    last: Progress
    finished: bool = False
    ended: RunSummary | None = None
    """What the run had come to when it last ended by itself."""
    ran: set[str] = field(default_factory=set)
    """Digests of the corpus cases that came back."""
    repeats: dict[str, int] = field(default_factory=dict)
    skips: dict[str, int] = field(default_factory=dict)
    coverage: Coverage = field(default_factory=Coverage)
    reported: dict[str, ReportedFinding] = field(default_factory=dict)
    """Confirmed, shrunk and saved."""
    unfinished: dict[str, FindingNew] = field(default_factory=dict)
    """Seen and not yet pursued to the end."""
    waiting: dict[str, FindingWaiting] = field(default_factory=dict)
    at_hand: Case | None = None
    """The case that was being run."""
    cut: list[str] = field(default_factory=list)
    """Lines of the log that a kill cut short."""
    damaged: list[str] = field(default_factory=list)
    """What of the log is lost, one line each."""

    @property
    def left(self) -> bool:
        """Whether something of what was found is still to be done, or a case was cut off."""
        found = any(reported.left for reported in self.reported.values())
        return found or bool(self.unfinished) or self.at_hand is not None

    def search_ended(self, reason: Reason, seconds: float) -> tuple[Reason, float]:
        """Why and when the search had ended that is only finished now, which says so otherwise."""
        if self.ended is None or self.ended.reason == "failed":
            return reason, seconds
        return self.ended.reason, self.ended.seconds

    def take(self, event: Event) -> None:
        if isinstance(event, CampaignStarted):
            self.start, self.finished = event, False
        elif isinstance(event, Progress):
            self.last = event
        elif isinstance(event, CaseRun):
            if event.source == "corpus":
                self._take_saved(event)
            if event.outcome == "skipped":
                self.skips[event.note] = self.skips.get(event.note, 0) + 1
        elif isinstance(event, CoverageSeen):
            self.coverage = event.coverage
        elif isinstance(event, CampaignFinished):
            self.finished, self.ended = True, event.summary
        else:
            self._take_finding(event)

    def _take_saved(self, event: CaseRun) -> None:
        """A case of the corpus is not run again; progress may not have counted it yet."""
        self.ran.add(event.digest)
        if event.index >= self.last.cases:
            self.last = msgspec.structs.replace(
                self.last,
                cases=event.index + 1,
                corpus_cases=self.last.corpus_cases + 1,
                steps=self.last.steps + event.steps,
            )

    def take_untold(self, out: Path) -> None:
        """Take in the findings that a damaged log has lost and whose records lie beside it."""
        found, damage = untold(out, {*self.reported, *self.unfinished})
        self.reported |= {reported.id: reported for reported in found}
        self.damaged += damage

    def _take_finding(self, event: Event) -> None:
        if isinstance(event, FindingNew):
            self.waiting.pop(event.id, None)
            if event.id not in self.reported:
                self.unfinished[event.id] = event
        elif isinstance(event, FindingWaiting):
            self.waiting[event.id] = event
        elif isinstance(event, FindingPursued | Exported):
            self.unfinished.pop(event.reported.id, None)
            self.reported[event.reported.id] = event.reported
        elif isinstance(event, FindingRepeated):
            self.repeats[event.id] = self.repeats.get(event.id, 0) + 1


def load_run_state(out: Path, shard: int = 0, shards: int = 1) -> RunState:
    """What the run in this folder had done, or one shard of it.

    Raises:
        UsageError: the folder holds no run.
    """
    refuse_links(out)
    folder = RunFolder(out, shard, shards)
    if not folder.events.is_file():
        raise UsageError(
            f"{out}: holds no {folder.events.name}, so it cannot be resumed. Name the folder of a "
            "run."
        )
    log = read_log(folder.events)
    start = next((event for event in log.events if isinstance(event, CampaignStarted)), None)
    if start is None:
        raise UsageError(f"{folder.events}: tells of no run. Start a new one with 'fuzzgraph run'.")
    nothing = Progress(seconds=0.0, cases=0, steps=0, findings=0, rate=0.0)
    past = RunState(start=start, last=nothing, cut=log.cut, damaged=log.damaged)
    for event in log.events:
        past.take(event)
    past.at_hand = _at_hand(folder, past)
    if folder.whole:  # another shard's may be a moment old
        free_empty_claims(folder)
        past.take_untold(out)
    return past


def _at_hand(folder: RunFolder, past: RunState) -> Case | None:
    """The case that had not come back; None where there is none or it was not even written."""
    try:
        case = load_case(folder.running)
    except InvalidCase:
        return None
    return None if digest(case) in past.ran else case


def free_empty_claims(folder: RunFolder) -> None:
    """Claims without a case: the run was killed before the finding was written down."""
    for claim in folder.findings.glob("*"):
        if claim.is_dir() and not any(claim.iterdir()):
            claim.rmdir()


def nothing_to_resume(out: Path, seconds: float | None = None) -> UsageError:
    """What to raise where a run is to go on that leaves nothing to do."""
    after = "" if seconds is None else f" after {seconds:.0f} s"
    return UsageError(
        f"{out}: the run has come to its end{after}. Give it more with --time, or start a new one."
    )


def resumed_plan(past: RunState, out: Path, seconds: float | None = None) -> RunSpec:
    """The plan of a resumed run: as it was, with what is left of its budget.

    A run that has come to its end is not searched on without a new budget: what it had no time for
    is finished, and takes what it takes.

    Args:
        seconds: a new budget in all, those already spent included; None for the old one.

    Raises:
        UsageError: the run had come to its end, nothing is left undone, and no new budget is given.
    """
    start = past.start
    over = past.finished and (seconds is None or seconds <= past.last.seconds)
    if over and not past.left:
        raise nothing_to_resume(out, past.last.seconds)
    budget = start.spec.budget
    budget = msgspec.structs.replace(budget, seconds=None if over else seconds or budget.seconds)
    return msgspec.structs.replace(start.spec, out=str(out), budget=budget, finish_only=over)


@dataclass(frozen=True, slots=True)
class Trusted:
    """What the caller of a resume has named again; None for what they have not.

    The folder of a run may come from anybody, so its log does not decide by itself which module is
    imported and which database is written to.
    """

    target: str | None = None
    database: str | None = None

    def words(self) -> list[str]:
        """The same as options of a command line."""
        given = (("--target", self.target), ("--database", self.database))
        return [word for option, value in given if value is not None for word in (option, value)]

    def check(self, out: Path, spec: RunSpec) -> None:
        """Refuse what the log of the run asks for and the caller has not named.

        Raises:
            UsageError: a module:factory or a database that is not named, or another one is.
        """
        target, database = spec.setup.target, spec.database
        code = target if ":" in target else ""
        self._check(out, "--target", self.target, target, code, "is code to import and run")
        self._check(out, "--database", self.database, database, database, "is written to")

    def _check(
        self, out: Path, option: str, named: str | None, told: str, risky: str, why: str
    ) -> None:
        if named is not None and named != told:
            raise UsageError(
                f"{option}={named!r}: the run in {out} has {told!r}. Name that, or leave it out."
            )
        if named is None and risky:
            raise UsageError(
                f"{out}: its log asks for {told!r}, which {why}. If you trust it, name it again: "
                f"{option} {shlex.quote(told)}"
            )
