"""Shares a budget of time between the search and what follows a finding.

A third of the time so far may go into confirming, shrinking and exporting while the search goes on.
For what is left of it the search ends early, by what such work has cost so far. The end of the
budget stands: what does not fit is told as left undone.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

from fuzzgraph.campaign.stopping import Deadline
from fuzzgraph.run_spec import RunSpec

__all__ = ["Reserve"]

_SHARE = 1 / 3
_KEPT = 1 / 4
"""Of the budget at most, however much is left to do when the search ends."""
_EXPORT_GUESS = 12.0
"""Seconds of a first export; a script is executed several times and imports torch each time."""
_CLOSING = 0.005
"""Of the budget: the reports of a run with findings."""


class _Cost:
    """What one kind of work took."""

    def __init__(self, guess: float) -> None:
        self._guess = guess
        self.total = 0.0
        self._count = 0

    @property
    def mean(self) -> float:
        return self.total / self._count if self._count else self._guess

    def add(self, seconds: float) -> None:
        self.total += seconds
        self._count += 1


class Reserve:
    """What may be done now, and until when."""

    def __init__(self, plan: RunSpec, watch: Deadline) -> None:
        self._plan = plan
        self._watch = watch
        self._limit = plan.budget.seconds
        self._pursuits = _Cost(plan.shrink_seconds)
        self._exports = _Cost(min(_EXPORT_GUESS, plan.export_seconds))

    @property
    def limited(self) -> bool:
        return self._limit is not None

    @property
    def over(self) -> bool:
        """Whether nothing may be started any more."""
        return self._watch.interrupted or self._left <= 0.0

    @property
    def due(self) -> bool:
        """Whether the search can spare the time for something else."""
        spent = self._pursuits.total + self._exports.total
        return self._limit is None or spent <= _SHARE * self._watch.seconds

    def kept(self, pending: int, unexported: int) -> float:
        """Seconds before the end of the budget at which the search makes room.

        Args:
            pending: findings to confirm and shrink.
            unexported: findings without repros, those that are pending included.
        """
        if self._limit is None:
            return 0.0
        needed = pending * self._pursuits.mean + unexported * self._exports.mean
        return min(_KEPT * self._limit, needed)

    def slice_end(self, pending: int, unexported: int) -> float:
        """When the next of the pending findings has had its share, in seconds of the campaign."""
        if self._limit is None:
            return math.inf
        exports = min(unexported * self._exports.mean, self._left / 2)
        return self._watch.seconds + (self._left - exports) / max(pending, 1)

    def export_seconds(self) -> float:
        """What executing the next repro may take; 0 where it had better not begin, and less than
        that where even recording one takes too long."""
        left = self._left - (_CLOSING * self._limit if self._limit else 0.0)
        if self._watch.interrupted or left <= 0.0:
            return -1.0
        seconds = min(left, self._plan.export_seconds - self._exports.total)
        hopeless = self.limited and seconds < self._exports.mean / 2
        return 0.0 if hopeless else max(seconds, 0.0)

    @contextmanager
    def pursuing(self) -> Iterator[None]:
        begin = self._watch.seconds
        yield
        self._pursuits.add(self._watch.seconds - begin)

    @contextmanager
    def exporting(self) -> Iterator[None]:
        begin = self._watch.seconds
        yield
        self._exports.add(self._watch.seconds - begin)

    @property
    def _left(self) -> float:
        left = self._watch.seconds_left
        return math.inf if left is None else left
