"""Counts of a campaign, and when it is time to say so."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from fuzzgraph.campaign.resume import RunState
from fuzzgraph.campaign.stopping import Deadline
from fuzzgraph.coverage import CoverageMap
from fuzzgraph.events import CoverageSeen, Emit, Outcome, Progress, Source
from fuzzgraph.run_spec import RunSpec

__all__ = ["Tally"]

_FULL_REPEATS = 10
_FULL_OUTCOMES = 1000
_SKIPS_NAMED = 40
_COVERAGE_EVERY = 1.1
"""By how much the time has grown when coverage is told again: about a hundred times a night."""


@dataclass(slots=True)
class Tally:
    """What has been run so far."""

    plan: RunSpec
    watch: Deadline
    emit: Emit
    cases: int = 0
    corpus_cases: int = 0
    steps: int = 0
    skipped: int = 0
    nondeterministic: int = 0
    findings: Callable[[], int] = lambda: 0
    deaths: Callable[[], int] = lambda: 0
    killed: Callable[[], int] = lambda: 0
    coverage: CoverageMap = field(default_factory=CoverageMap)
    skips: Counter[str] = field(default_factory=Counter)
    repeats: Counter[str] = field(default_factory=Counter)
    fallbacks: Counter[str] = field(default_factory=Counter)
    unchecked: Counter[str] = field(default_factory=Counter)
    outcomes: Counter[str] = field(default_factory=Counter)
    block: int = 0
    drawn: int = 0
    """Cases of that block that had their turn."""
    ahead: set[str] = field(default_factory=set)
    """Digests of cases that were run before their turn, which is still to come."""
    _told_at: float = 0.0
    _told_cases: int = 0
    _cover_at: float = 10.0

    def take_back(self, past: RunState) -> None:
        """Go on counting where a killed run stopped."""
        last = past.last
        self.cases, self.corpus_cases = last.cases, last.corpus_cases
        self.steps, self.skipped = last.steps, last.skipped
        self.nondeterministic, self.block = last.nondeterministic, last.block
        self.drawn, self.ahead = last.drawn, set(last.ahead)
        self.repeats.update(past.repeats)
        self.skips.update(past.skips)
        self.unchecked.update(last.unchecked)
        self.coverage.absorb(past.coverage)
        self._told_at, self._told_cases = last.seconds, last.cases

    @property
    def examples(self) -> int:
        """Generated cases."""
        return self.cases - self.corpus_cases

    def count(self, outcome: Outcome, steps: int, *, from_corpus: bool) -> None:
        self.cases += 1
        self.corpus_cases += from_corpus
        self.steps += steps
        self.skipped += outcome == "skipped"
        self.nondeterministic += outcome == "nondeterministic"

    def skip(self, reason: str) -> None:
        """Count why a case was not run; reasons beyond the first forty share one line."""
        known = reason in self.skips or len(self.skips) < _SKIPS_NAMED
        self.skips[reason if known else "other reasons"] += 1

    def cover(self, names: Iterable[str]) -> int:
        """Take in what a case that ran has covered; how many pairs were new."""
        return self.coverage.add(names)

    def repeat(self, finding: str) -> bool:
        """Count one more case with a known finding; whether to say so, ever more rarely."""
        self.repeats[finding] += 1
        count = self.repeats[finding]
        return count <= _FULL_REPEATS or count & (count - 1) == 0

    def worth_telling(self, outcome: Outcome, source: Source) -> bool:
        """Whether a case gets an event of its own: what is common is told ever more rarely."""
        if outcome == "clean":
            return source == "corpus"
        self.outcomes[outcome] += 1
        count = self.outcomes[outcome]
        return count <= _FULL_OUTCOMES or count & (count - 1) == 0

    def tick(self, doing: str = "fuzzing", *, always: bool = False) -> None:
        """Emit progress if the last one is old enough."""
        if not always and self.watch.seconds - self._told_at < self.plan.progress_seconds:
            return
        now = self.say(doing)
        if always or now >= self._cover_at:
            self._cover_at = max(now + 10.0, now * _COVERAGE_EVERY)
            self.emit(CoverageSeen(shard=self.plan.shard, coverage=self.coverage.record()))

    def say(self, doing: str) -> float:
        """Emit progress now, since something else is done from now on; seconds of the campaign."""
        now = self.watch.seconds
        since = now - self._told_at
        limit = self.plan.budget.examples
        self.emit(
            Progress(
                shard=self.plan.shard,
                seconds=round(now, 3),
                cases=self.cases,
                steps=self.steps,
                findings=self.findings(),
                rate=round((self.cases - self._told_cases) / since, 1) if since > 0 else 0.0,
                doing=doing,
                seconds_left=self.watch.seconds_left,
                examples_left=None if limit is None else max(0, limit - self.examples),
                skipped=self.skipped,
                dimensions=self.coverage.dimensions,
                pairs=self.coverage.pairs,
                deaths=self.deaths(),
                killed=self.killed(),
                corpus_cases=self.corpus_cases,
                nondeterministic=self.nondeterministic,
                block=self.block,
                unchecked=dict(self.unchecked),
                drawn=self.drawn,
                ahead=tuple(sorted(self.ahead)),
            )
        )
        self._told_at, self._told_cases = now, self.cases
        return now
