"""A run's summary from its events alone, also of a run that was killed or resumed.

Reports are made from this, so that there is one source of truth: the event log.
"""

from __future__ import annotations

from collections.abc import Iterable

import msgspec

from fuzzgraph.case import digest
from fuzzgraph.coverage import CoverageMap
from fuzzgraph.events import (
    CampaignFinished,
    CampaignStarted,
    CaseRun,
    CoverageSeen,
    Event,
    Exported,
    FindingFlaky,
    FindingNew,
    FindingPursued,
    FindingRepeated,
    Progress,
    ReportedFinding,
    RunSummary,
)

__all__ = ["summary_of"]


def summary_of(events: Iterable[Event]) -> RunSummary | None:
    """The summary of one shard; None without a single start of a campaign.

    Events after the last end of a campaign, and those of a run without one, are added up: such a
    run counts as killed, and its findings are those seen until then.
    """
    run: _Run | None = None
    for event in events:
        if isinstance(event, CampaignStarted):
            run = _Run(event, run)
        elif run is not None:
            run.take(event)
    return run.summary() if run is not None else None


class _Run:
    """One campaign of a log, and what came before it in the same log."""

    def __init__(self, start: CampaignStarted, before: _Run | None) -> None:
        self._start = start
        self._findings = dict(before.findings) if before else {}
        self._repeats: dict[str, int] = {}
        self._skips: dict[str, int] = {}
        self._last = Progress(seconds=0.0, cases=0, steps=0, findings=0, rate=0.0)
        self._coverage = CoverageMap()
        self._finished: RunSummary | None = None

    @property
    def findings(self) -> dict[str, ReportedFinding]:
        """By id, in the order of first sight."""
        done = {one.id: one for one in self._finished.findings} if self._finished else {}
        return self._findings | done

    def take(self, event: Event) -> None:
        if isinstance(event, FindingNew):
            self._findings.setdefault(event.id, _as_seen(event))
        elif isinstance(event, FindingPursued | Exported):
            self._findings[event.reported.id] = event.reported
        elif isinstance(event, FindingRepeated):
            self._repeats[event.id] = self._repeats.get(event.id, 0) + 1
        elif isinstance(event, FindingFlaky):
            self._rate(event)
        elif isinstance(event, Progress):
            self._last = event
        elif isinstance(event, CaseRun):
            if event.outcome == "skipped":
                self._skips[event.note] = self._skips.get(event.note, 0) + 1
        elif isinstance(event, CoverageSeen):
            self._coverage = CoverageMap()
            self._coverage.absorb(event.coverage)
        elif isinstance(event, CampaignFinished):
            self._finished = event.summary

    def _rate(self, event: FindingFlaky) -> None:
        known = self._findings.get(event.id)
        if known is not None and not known.finding.confirmed:
            finding = msgspec.structs.replace(known.finding, confirmed=event.rate)
            self._findings[event.id] = msgspec.structs.replace(known, finding=finding)

    def summary(self) -> RunSummary:
        if self._finished is not None:
            return self._finished
        start, last = self._start, self._last
        return RunSummary(
            fuzzgraph=start.fuzzgraph,
            spec=start.spec,
            started=start.started,
            reason="killed",
            seconds=last.seconds,
            total_seconds=last.seconds,
            cases=last.cases,
            corpus_cases=last.corpus_cases,
            steps=last.steps,
            skipped=last.skipped,
            skips=self._skips,
            beyond=start.beyond,
            unchecked=last.unchecked,
            deaths=last.deaths,
            killed=last.killed,
            findings=tuple(self._findings.values()),
            repeats=self._repeats,
            coverage=self._coverage.record(),
        )


def _as_seen(event: FindingNew) -> ReportedFinding:
    """A finding that the run did not live to confirm and shrink."""
    return ReportedFinding(
        id=event.id,
        finding=event.finding,
        case=event.case,
        digest=digest(event.case),
        left=("confirm", "shrink", "export"),
    )
