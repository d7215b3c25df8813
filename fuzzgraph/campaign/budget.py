"""The time of a run: when it ends, and how much of it goes into what follows a finding.

A third of the time so far may go into confirming, shrinking and exporting while the search goes on.
For what is left of that work the search ends early, by what such work has cost so far. The end of
the budget holds: what does not fit is reported as left undone.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from enum import Enum
from typing import NamedTuple

from fuzzgraph.run.events import Reason
from fuzzgraph.run.spec import RunSpec

Clock = Callable[[], float]

_SHARE = 1 / 3
"""Of the time so far at most for triage while the search goes on: its findings are on disk, so that
they can wait, and the search finds nothing while it waits."""
_KEPT = 1 / 4
"""Of the budget at most for triage after the search, however much of it is left by then."""
_EXPORT_GUESS = 12.0
"""Seconds of a first export; a script is executed several times and imports torch each time."""
_CLOSING = 0.005
"""Of the budget: the reports of a run with findings."""
_WORTH_BEGINNING = 1 / 2
"""Of the mean cost of an export: with less time than that it would only be cut off."""


class StopCampaign(BaseException):
    """Ends the search; not an `Exception`, or Hypothesis would take it for a failing example."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Effort(Enum):
    """What there is time for when a finding is exported."""

    RUN = "run"
    """Write the repros, and execute the script."""
    WRITE_ONLY = "write only"
    """Write them; the script's operations are still recorded, which runs the case once."""
    SKIP = "skip"
    """Not even record: write a script that runs the case through FuzzGraph."""


class Allowance(NamedTuple):
    """What an export may do, and how long executing its script may take."""

    effort: Effort
    seconds: float = 0.0


class _Cost:
    """What one kind of work took."""

    def __init__(self, guess: float) -> None:
        self._guess = guess
        self.total = 0.0
        self._count = 0

    @property
    def mean(self) -> float:
        return self.total / self._count if self._count else self._guess

    @contextmanager
    def measured(self, clock: Clock) -> Iterator[None]:
        begin = clock()
        yield
        self.total += clock() - begin
        self._count += 1


class TimeBudget:
    """Time and counts against the budget of a spec.

    Args:
        clock: in seconds; one that no change of the date moves.
        spent: seconds that the run had taken before it was resumed.
    """

    def __init__(self, spec: RunSpec, clock: Clock = time.monotonic, spent: float = 0.0) -> None:
        self._budget = spec.budget
        self._limit = spec.budget.seconds
        self._export_seconds = spec.export_seconds
        self._clock = clock
        self._start = clock() - spent
        self._why: Reason | None = None
        self._shrinks = _Cost(spec.shrink_seconds)
        self._exports = _Cost(min(_EXPORT_GUESS, spec.export_seconds))

    def interrupt(self, why: Reason = "interrupted") -> None:
        """End after the case at hand."""
        self._why = self._why or why

    @property
    def interrupted(self) -> bool:
        return self._why is not None

    @property
    def limited(self) -> bool:
        return self._limit is not None

    @property
    def seconds(self) -> float:
        """Of the run so far."""
        return self._clock() - self._start

    @property
    def seconds_left(self) -> float | None:
        return None if self._limit is None else max(0.0, self._limit - self.seconds)

    @property
    def used(self) -> float:
        """Share of the budget of time that is used up; 0 without one."""
        return 0.0 if self._limit is None else self.seconds / self._limit

    @property
    def over(self) -> bool:
        """Whether nothing may be started any more."""
        return self.interrupted or self._left <= 0.0

    def deadline(self, before_end: float = 0.0) -> float:
        """So many seconds before the end of the budget, by the clock itself; inf without one."""
        return math.inf if self._limit is None else self._start + self._limit - before_end

    def stop_reason(self, examples: int, findings: int, kept: float = 0.0) -> Reason | None:
        """Why to end the search now, or None to go on.

        Args:
            examples: generated cases so far; -1 while the corpus runs.
            findings: that count, reported so far.
            kept: seconds of the budget that triage needs.
        """
        if self._why is not None:
            return self._why
        if self._budget.findings is not None and findings >= self._budget.findings:
            return "findings"
        if self._budget.examples is not None and examples >= self._budget.examples:
            return "examples"
        left = self.seconds_left
        return "time" if left is not None and left <= kept else None

    def enough_found(self, findings: int) -> bool:
        """Whether the search ends anyway once these are reported."""
        return self._budget.findings is not None and findings >= self._budget.findings

    @property
    def triage_due(self) -> bool:
        """Whether the search can spare the time for triage."""
        spent = self._shrinks.total + self._exports.total
        return self._limit is None or spent <= _SHARE * self.seconds

    def kept_for_triage(self, pending: int, unexported: int) -> float:
        """Seconds before the end of the budget at which the search ends for the sake of triage.

        Args:
            pending: findings to confirm and shrink.
            unexported: findings without repros, those that are pending included.
        """
        if self._limit is None:
            return 0.0
        needed = pending * self._shrinks.mean + unexported * self._exports.mean
        return min(_KEPT * self._limit, needed)

    def shrink_until(self, pending: int, unexported: int) -> float:
        """When the next of the pending findings has had its share, in seconds of the run."""
        if self._limit is None:
            return math.inf
        exports = min(unexported * self._exports.mean, self._left / 2)
        return self.seconds + (self._left - exports) / max(pending, 1)

    def export_allowance(self) -> Allowance:
        """What the next export may do."""
        left = self._left - (_CLOSING * self._limit if self._limit else 0.0)
        if self.interrupted or left <= 0.0:
            return Allowance(Effort.SKIP)
        seconds = min(left, self._export_seconds - self._exports.total)
        hopeless = self.limited and seconds < self._exports.mean * _WORTH_BEGINNING
        if hopeless or seconds <= 0.0:
            return Allowance(Effort.WRITE_ONLY)
        return Allowance(Effort.RUN, seconds)

    @contextmanager
    def shrinking(self) -> Iterator[None]:
        """What is done inside counts as confirming and shrinking."""
        with self._shrinks.measured(self._clock):
            yield

    @contextmanager
    def exporting(self) -> Iterator[None]:
        """What is done inside counts as exporting."""
        with self._exports.measured(self._clock):
            yield

    @property
    def _left(self) -> float:
        left = self.seconds_left
        return math.inf if left is None else left
