"""What a run has done so far, folded from its own events.

There is one fold: a campaign applies to it what it emits, and a resume, a report, the shards of a
run and the driver of a fleet read it back from the log. What was counted since the last `Progress`
is the campaign's own, until it emits the next one.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, TypeVar

from msgspec.structs import replace

from fuzzgraph.case import Case, digest
from fuzzgraph.finding import Finding
from fuzzgraph.run.coverage import Coverage, CoverageMap
from fuzzgraph.run.event_log import Log, read_log
from fuzzgraph.run.events import (
    CampaignFinished,
    CampaignStarted,
    CaseRun,
    Counted,
    Event,
    Exported,
    FindingAttached,
    FindingFlaky,
    FindingNew,
    FindingPursued,
    FindingRepeated,
    FindingWaiting,
    Noted,
    Progress,
    ReportedFinding,
    RunSummary,
    finding_id,
)
from fuzzgraph.run.records import Counts, NamedCounts

_STARTED = ("spec", "started", "fuzzgraph", "beyond", "environment")
"""What the summary says as the start of the run does, by the same names."""
_LINES = ("bad_entries", "damaged", "mended")
_COUNTS = Counts.__struct_fields__
_NAMED_COUNTS = NamedCounts.__struct_fields__
_NOTHING_YET = Progress(seconds=0.0, findings=0, rate=0.0)

CountsT = TypeVar("CountsT", bound=Counts)


class RunState:
    """One shard of a run, from its start to its last event."""

    def __init__(self, events: Iterable[Event] = ()) -> None:
        self._start: CampaignStarted | None = None
        self._record: RunSummary | None = None
        """The summary as far as it can be told, but for the findings."""
        self.progress = _NOTHING_YET
        """The last one: how far the search is in its blocks, and when that was."""
        self.finished = False
        """Whether the run has ended by itself and was not resumed since."""
        self.ended: RunSummary | None = None
        """What the run had come to when it last ended by itself."""
        self.findings: dict[str, ReportedFinding] = {}
        """By id, in the order of first sight; also those that are not worked on yet."""
        self.unfinished: dict[str, FindingNew] = {}
        """The findings still to be confirmed and shrunk."""
        self.waiting: dict[str, FindingWaiting] = {}
        self.corpus_ran: set[str] = set()
        """Digests of the corpus cases that came back."""
        self.at_hand: Case | None = None
        """The case that was being run when the run was killed; it is on disk and not in the log."""
        for event in events:
            self.apply(event)

    @staticmethod
    def load(log: Path) -> RunState:
        """The state at the end of a log; lines that cannot be read are named in it.

        Raises:
            UsageError: the log cannot be read at all.
        """
        return RunState.of(read_log(log))

    @staticmethod
    def of(log: Log) -> RunState:
        """The same of a log that is read."""
        state = RunState(log.events)
        if state.begun:
            state.apply(Noted(bad_entries=tuple(log.cut), damaged=tuple(log.damaged)))
        return state

    @property
    def begun(self) -> bool:
        """Whether there was any start of a run; what comes before one tells nothing."""
        return self._start is not None

    @property
    def start(self) -> CampaignStarted:
        """The last start: what the run was asked to do."""
        assert self._start is not None, "a run has a start"
        return self._start

    @property
    def record(self) -> RunSummary:
        """The summary without its findings."""
        assert self._record is not None, "a run has a start"
        return self._record

    @property
    def reported(self) -> list[ReportedFinding]:
        """The findings that were worked on as far as there was time for it."""
        return [one for name, one in self.findings.items() if name not in self.unfinished]

    @property
    def left(self) -> bool:
        """Whether something of what was found is still to be done, or a case was cut off."""
        found = any(reported.left for reported in self.findings.values())
        return found or bool(self.unfinished) or self.at_hand is not None

    def summary(self) -> RunSummary:
        """The run as it stands; one that has not ended by itself counts as killed."""
        return replace(self.record, findings=tuple(self.findings.values()))

    def apply(self, event: Event) -> None:
        """Take in the next event."""
        if isinstance(event, CampaignStarted):
            self._begin(event)
        elif self._start is not None:
            self._take(event)

    def adopt(self, reported: ReportedFinding) -> None:
        """Take in a finding as somebody's record of it says."""
        self.unfinished.pop(reported.id, None)
        self.findings[reported.id] = reported

    def _begin(self, event: CampaignStarted) -> None:
        told: dict[str, Any] = {name: getattr(event, name) for name in _STARTED}
        if self._record is None:
            self._record = RunSummary(**told, reason="killed")
        else:
            again: dict[str, Any] = {"reason": "killed", "error": "", "cut_off": ""}
            self._record = replace(self._record, **told, **again)
        self._start, self.finished = event, False
        for reported in self.findings.values():
            if {"confirm", "shrink"} & set(reported.left) and reported.id not in self.unfinished:
                self.unfinished[reported.id] = _seen_again(reported)

    def _take(self, event: Event) -> None:
        if isinstance(event, Progress):
            self.progress = event
            self._change(_fields(event, _COUNTS))
            self._change({"seconds": event.seconds, "total_seconds": event.seconds})
        elif isinstance(event, CaseRun):
            self._take_case(event)
        elif isinstance(event, Counted):
            self._change(_fields(event, _NAMED_COUNTS))
        elif isinstance(event, Noted):
            self._change({name: self._longer(name, getattr(event, name)) for name in _LINES})
        elif isinstance(event, CampaignFinished):
            self._finish(event.summary)
        else:
            self._take_finding(event)

    def _take_case(self, event: CaseRun) -> None:
        """A skipped case counts by its reason; one of the corpus is not run again, and a kill may
        have come before the `Progress` that counts it."""
        if event.outcome == "skipped":
            self._count("skips", event.note)
        if event.source == "corpus":
            self.corpus_ran.add(event.digest)
            if event.index >= self.record.cases:
                corpus_cases, steps = self.record.corpus_cases + 1, self.record.steps + event.steps
                self._change(
                    {"cases": event.index + 1, "corpus_cases": corpus_cases, "steps": steps}
                )

    def _take_finding(self, event: Event) -> None:
        if isinstance(event, FindingNew):
            self.waiting.pop(event.id, None)
            if event.id not in self.findings:
                self.findings[event.id] = _as_seen(event)
                self.unfinished[event.id] = event
        elif isinstance(event, FindingWaiting):
            self.waiting[event.id] = event
        elif isinstance(event, FindingAttached):
            self._attach(event)
        elif isinstance(event, FindingPursued | Exported):
            self.adopt(event.reported)
        elif isinstance(event, FindingRepeated):
            self._change({"repeats": {**self.record.repeats, event.id: event.count}})
        elif isinstance(event, FindingFlaky):
            self._rate(event)

    def _attach(self, event: FindingAttached) -> None:
        """To a finding of ours, or to one that another shard reports."""
        self.waiting.pop(finding_id(event.finding.key), None)
        owner = self.findings.get(event.id)
        if owner is not None:
            self.findings[event.id] = replace(owner, also=_with(owner.also, event.finding))
            return
        there = self.record.beside.get(event.id, ())
        self._change({"beside": {**self.record.beside, event.id: _with(there, event.finding)}})

    def _rate(self, event: FindingFlaky) -> None:
        known = self.findings.get(event.id)
        if known is not None and not known.finding.confirmed:
            finding = replace(known.finding, confirmed=event.rate)
            self.findings[event.id] = replace(known, finding=finding)

    def _finish(self, summary: RunSummary) -> None:
        """The end tells all once more, so that a line of the log that is lost costs nothing."""
        more = {name: getattr(self.record, name) for name in _LINES}
        self._record = replace(summary, findings=())
        self._change({name: self._longer(name, lines) for name, lines in more.items()})
        for reported in summary.findings:
            self.adopt(reported)
        self.finished, self.ended = True, summary

    def _count(self, name: str, key: str) -> None:
        counts: dict[str, int] = getattr(self.record, name)
        self._change({name: {**counts, key: counts.get(key, 0) + 1}})

    def _longer(self, name: str, lines: tuple[str, ...]) -> tuple[str, ...]:
        known: tuple[str, ...] = getattr(self.record, name)
        return tuple(dict.fromkeys((*known, *lines)))

    def _change(self, fields: dict[str, Any]) -> None:
        self._record = replace(self.record, **fields)


def _fields(event: Counts, names: Iterable[str]) -> dict[str, Any]:
    return {name: getattr(event, name) for name in names}


def _with(findings: tuple[Finding, ...], one: Finding) -> tuple[Finding, ...]:
    return (*(other for other in findings if other.key != one.key), one)


def _as_seen(event: FindingNew) -> ReportedFinding:
    """A finding that is not confirmed and shrunk yet."""
    return ReportedFinding(
        id=event.id,
        finding=event.finding,
        case=event.case,
        digest=digest(event.case),
        also=event.also,
        source=event.source,
        after_cases=event.after_cases,
        after_seconds=event.after_seconds,
        left=("confirm", "shrink", "export"),
    )


def _seen_again(reported: ReportedFinding) -> FindingNew:
    """A finding that the run had no time to confirm and shrink, at the start of its resume."""
    return FindingNew(
        id=reported.id,
        finding=reported.finding,
        case=reported.case,
        also=reported.also,
        source=reported.source,
        after_cases=reported.after_cases,
        after_seconds=reported.after_seconds,
    )


def add_counts(parts: Sequence[CountsT]) -> CountsT:
    """The first with every count of all of them: numbers and counts by name are added up, coverage
    is put together, and all else stays as the first has it."""
    counts = _NAMED_COUNTS if isinstance(parts[0], NamedCounts) else _COUNTS
    return replace(
        parts[0], **{name: _added([getattr(one, name) for one in parts]) for name in counts}
    )


def _added(values: Sequence[Any]) -> Any:
    if isinstance(values[0], Coverage):
        whole = CoverageMap()
        for one in values:
            whole.absorb(one)
        return whole.record()
    if isinstance(values[0], dict):
        total: Counter[str] = Counter()
        for one in values:
            total.update(one)
        return dict(total)
    return sum(values)


def join_summaries(summaries: Sequence[RunSummary]) -> RunSummary:
    """One summary of all shards of a run; they ran side by side, so the longest time counts."""
    whole = add_counts(summaries)
    return replace(
        whole,
        reason=next((one.reason for one in summaries if one.reason != whole.reason), whole.reason),
        seconds=max(one.seconds for one in summaries),
        total_seconds=max(one.total_seconds for one in summaries),
        findings=_joined_findings(summaries),
        beside={},
        cut_off=next((one.cut_off for one in summaries if one.cut_off), ""),
        error="; ".join(one.error for one in summaries if one.error),
        **{name: _joined_lines(name, summaries) for name in _LINES},
    )


def _joined_lines(name: str, summaries: Sequence[RunSummary]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line for one in summaries for line in getattr(one, name)))


def _joined_findings(summaries: Sequence[RunSummary]) -> tuple[ReportedFinding, ...]:
    """All findings, each once and with what other shards saw only beside it."""
    best: dict[str, ReportedFinding] = {}
    for reported in (reported for one in summaries for reported in one.findings):
        if _work_left(reported) < _work_left(best.setdefault(reported.id, reported)):
            best[reported.id] = reported
    return tuple(_with_beside(reported, summaries) for reported in best.values())


def _work_left(reported: ReportedFinding) -> tuple[bool, int, int]:
    """Least for the best of several copies, where shards worked on one finding at once."""
    return (not reported.finding.confirmed, len(reported.left), len(reported.case.steps))


def _with_beside(reported: ReportedFinding, summaries: Sequence[RunSummary]) -> ReportedFinding:
    also = {other.key: other for other in reported.also}
    for other in (other for one in summaries for other in one.beside.get(reported.id, ())):
        also.setdefault(other.key, other)
    return replace(reported, also=tuple(also.values()))
