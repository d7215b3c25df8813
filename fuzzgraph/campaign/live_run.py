"""What all parts of a running campaign share: what was asked, what has happened, the time left.

Every event goes through here: it changes the state of the run, then it is written. What is too
frequent for an event of its own is counted here and written with the next `Progress`.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Iterable
from datetime import datetime, timezone
from typing import Any

from msgspec.structs import replace

import fuzzgraph
from fuzzgraph.campaign.budget import Clock, TimeBudget
from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.case import Case, digest
from fuzzgraph.run.coverage import CoverageMap
from fuzzgraph.run.environment import UNKNOWN, Environment
from fuzzgraph.run.events import (
    CampaignFinished,
    CampaignStarted,
    CaseRun,
    Counted,
    Emit,
    Event,
    FindingRepeated,
    Noted,
    Outcome,
    Progress,
    Reason,
    RunSummary,
    Source,
)
from fuzzgraph.run.runner import VerdictLike
from fuzzgraph.run.spec import RunSpec
from fuzzgraph.run.state import RunState

_NAMED = (
    "skips", "fallbacks", "unchecked", "unguarded", "late_copies", "repeats", "quarantined",
)  # fmt: skip
"""What is counted by name."""
_ALL_REPEATS = 10
_ALL_OUTCOMES = 1000
"""So many are written one by one; after that only every power of two, so that a bug that shows in
every case of a night does not fill the disk."""
_SKIPS_NAMED = 40
_COUNTED_EVERY = 1.1
"""By how much the time has grown when all counts are written again: about a hundred times a
night."""


class LiveRun:
    """One for a campaign.

    Args:
        emit: receives every event, in order.
        state: what the run had done before it was killed, or nothing.
        deaths: how often the engine's process has died, and been killed from outside, since.
    """

    def __init__(
        self,
        spec: RunSpec,
        emit: Emit,
        state: RunState,
        *,
        deaths: Callable[[], tuple[int, int]] = lambda: (0, 0),
        clock: Clock = time.monotonic,
    ) -> None:
        self.spec = spec
        self.state = state
        self.folder = RunFolder(spec.folder, spec.shard, spec.shards)
        self.budget = TimeBudget(spec, clock, state.progress.seconds)
        self._sink = emit
        self._deaths = deaths
        begun = state.record if state.begun else None
        self._deaths_before = (begun.deaths, begun.killed) if begun else (0, 0)
        self.cases = begun.cases if begun else 0
        self.corpus_cases = begun.corpus_cases if begun else 0
        self._steps = begun.steps if begun else 0
        self._skipped = begun.skipped if begun else 0
        self._nondeterministic = begun.nondeterministic if begun else 0
        self._unrepeatable = begun.unrepeatable if begun else 0
        self._by_name = {name: Counter(getattr(begun, name) if begun else {}) for name in _NAMED}
        self._coverage = CoverageMap()
        if begun:
            self._coverage.absorb(begun.coverage)
        self.block, self.drawn = state.progress.block, state.progress.drawn
        self.ahead = set(state.progress.ahead)
        """Digests of cases that were run before their turn, which is still to come."""
        self._outcomes: Counter[str] = Counter()
        self._progress_at = state.progress.seconds
        self._progress_cases = self.cases
        self._counted_at = 10.0
        self._names_written = 0

    def emit(self, *events: Event) -> None:
        """Take events into the state of the run, and hand them on.

        Raises:
            UsageError: they cannot be written; the state has them all the same.
        """
        for event in events:
            self.state.apply(event)
        for event in events:
            self._sink(event)

    @property
    def examples(self) -> int:
        """Generated cases."""
        return self.cases - self.corpus_cases

    def start(
        self, corpus_cases: int, beyond: Iterable[str], environment: Environment = UNKNOWN
    ) -> None:
        """Emit the first event; with it the run can be resumed from its log."""
        now = datetime.now(timezone.utc).isoformat(timespec="seconds")
        before = self.state.start.started if self.state.begun else ""
        self.emit(
            CampaignStarted(
                shard=self.spec.shard,
                spec=self.spec,
                corpus_cases=corpus_cases,
                started=before or now,
                fuzzgraph=fuzzgraph.__version__,
                beyond=tuple(beyond),
                environment=environment,
            )
        )

    def note(
        self,
        *,
        mended: Iterable[str] = (),
        bad_entries: Iterable[str] = (),
        damaged: Iterable[str] = (),
    ) -> None:
        """Emit lines for the report that it does not have yet."""
        record = self.state.record
        noted = Noted(
            shard=self.spec.shard,
            mended=_new_lines(mended, record.mended),
            bad_entries=_new_lines(bad_entries, record.bad_entries),
            damaged=_new_lines(damaged, record.damaged),
        )
        if noted.mended or noted.bad_entries or noted.damaged:
            self.emit(noted)

    def count(self, verdict: VerdictLike, source: Source) -> Outcome:
        """Count a case that came back."""
        outcome = _outcome(verdict)
        self.cases += 1
        self.corpus_cases += source == "corpus"
        self._steps += verdict.steps
        self._nondeterministic += outcome == "nondeterministic"
        self._by_name["fallbacks"].update(verdict.fallbacks)
        self._by_name["unchecked"].update(verdict.unchecked)
        self._by_name["unguarded"].update(verdict.unguarded)
        self._by_name["late_copies"].update(verdict.late_copies)
        self._unrepeatable += verdict.unrepeatable
        if verdict.skipped:
            self.count_skip(verdict.skipped)
        return outcome

    def count_refused(self, why: str) -> None:
        """Count a generated case that contradicts itself, so that it has no verdict."""
        self.cases += 1
        self.count_skip(why)

    def count_skip(self, why: str) -> None:
        """Count why a case was not run; reasons beyond the first forty share one line."""
        skips = self._by_name["skips"]
        self._skipped += 1
        skips[why if why in skips or len(skips) < _SKIPS_NAMED else "other reasons"] += 1

    def count_quarantined(self, entry: str) -> None:
        """Count a case that an entry of the ledger kept from running."""
        self._by_name["quarantined"][entry] += 1

    def cover(self, names: Iterable[str]) -> int:
        """Take in what a case that ran has covered; how many pairs were new."""
        return self._coverage.add(names)

    def repeated(self, finding: str, case: str) -> None:
        """Count one more case, by its digest, that shows a known finding."""
        repeats = self._by_name["repeats"]
        repeats[finding] += 1
        if _worth_writing(repeats[finding], _ALL_REPEATS):
            event = FindingRepeated(
                shard=self.spec.shard, id=finding, digest=case, count=repeats[finding]
            )
            self.emit(event)

    def write_case(
        self, case: Case, verdict: VerdictLike, outcome: Outcome, source: Source, seconds: float
    ) -> None:
        """Emit an event of its own for a case if it is worth one."""
        if outcome == "clean" and source == "generated":
            return
        self._outcomes[outcome] += 1
        if outcome != "clean" and not _worth_writing(self._outcomes[outcome], _ALL_OUTCOMES):
            return
        self.emit(
            CaseRun(
                shard=self.spec.shard,
                index=self.cases - 1,
                digest=digest(case),
                source=source,
                outcome=outcome,
                steps=verdict.steps,
                seconds=round(seconds, 6),
                note=verdict.skipped,
            )
        )

    def tick(self, doing: str = "fuzzing") -> None:
        """Emit progress if the last one is old enough, and all counts if those are."""
        if self.budget.seconds - self._progress_at < self.spec.progress_seconds:
            return
        now = self.say(doing)
        names = sum(map(len, self._by_name.values())) - len(self._by_name["repeats"])
        if now >= self._counted_at or names > self._names_written:
            self._counted_at = max(now + 10.0, now * _COUNTED_EVERY)
            self._names_written = names
            self.emit(self._counted())

    def say(self, doing: str) -> float:
        """Emit progress now, since something else is done from now on; seconds of the run."""
        progress = self._progress(doing)
        self.emit(progress)
        return progress.seconds

    def write_counts(self) -> None:
        """Emit progress and all counts: the state of the run is exact then."""
        self.emit(self._progress("done"), self._counted())

    def summary(
        self, reason: Reason, *, seconds: float, cut_off: str = "", error: str = ""
    ) -> RunSummary:
        """The run as it stands, with why and when the search ended, in seconds of the run."""
        return replace(
            self.state.summary(),
            reason=reason,
            seconds=round(seconds, 3),
            total_seconds=round(self.budget.seconds, 3),
            cut_off=cut_off,
            error=error,
        )

    def finish(self, summary: RunSummary) -> None:
        """Emit the last of the events."""
        self.emit(CampaignFinished(shard=self.spec.shard, summary=summary))

    def _progress(self, doing: str) -> Progress:
        now = self.budget.seconds
        since, cases = now - self._progress_at, self.cases - self._progress_cases
        limit = self.spec.budget.examples
        self._progress_at, self._progress_cases = now, self.cases
        return Progress(
            shard=self.spec.shard,
            seconds=round(now, 3),
            **self._counts(),
            findings=len(self.state.findings),
            rate=round(cases / since, 1) if since > 0 else 0.0,
            doing=doing,
            seconds_left=self.budget.seconds_left,
            examples_left=None if limit is None else max(0, limit - self.examples),
            dimensions=self._coverage.dimensions,
            pairs=self._coverage.pairs,
            block=self.block,
            drawn=self.drawn,
            ahead=tuple(sorted(self.ahead)),
        )

    def _counts(self) -> dict[str, Any]:
        deaths, killed = map(sum, zip(self._deaths_before, self._deaths(), strict=True))
        return {
            "cases": self.cases,
            "corpus_cases": self.corpus_cases,
            "steps": self._steps,
            "skipped": self._skipped,
            "nondeterministic": self._nondeterministic,
            "unrepeatable": self._unrepeatable,
            "deaths": deaths,
            "killed": killed,
        }

    def _counts_by_name(self) -> dict[str, Any]:
        return {name: dict(counts.most_common()) for name, counts in self._by_name.items()}

    def _counted(self) -> Counted:
        return Counted(
            shard=self.spec.shard,
            coverage=self._coverage.record(),
            **self._counts(),
            **self._counts_by_name(),
        )


def _outcome(verdict: VerdictLike) -> Outcome:
    if verdict.findings:
        return "finding"
    if verdict.skipped:
        return "skipped"
    return "nondeterministic" if verdict.nondeterministic else "clean"


def _worth_writing(count: int, all_up_to: int) -> bool:
    """Every one of the first, then every power of two: `n & (n - 1)` clears the lowest bit."""
    return count <= all_up_to or count & (count - 1) == 0


def _new_lines(lines: Iterable[str], known: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(line for line in lines if line not in known)
