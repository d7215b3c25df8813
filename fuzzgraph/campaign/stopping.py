"""When a campaign ends: budget spent, enough found, or Ctrl-C after the case at hand."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from fuzzgraph.events import Reason
from fuzzgraph.run_spec import Budget

__all__ = ["StopCampaign", "Deadline"]

Clock = Callable[[], float]


class StopCampaign(BaseException):
    """Ends a block of examples; no `Exception`, or Hypothesis would take it for a failure."""

    def __init__(self, reason: Reason) -> None:
        super().__init__(reason)
        self.reason: Reason = reason


class Deadline:
    """Time and counts against a budget. The clock is one that no change of the date moves.

    Args:
        spent: seconds that the run had taken before it was resumed.
    """

    def __init__(self, budget: Budget, clock: Clock = time.monotonic, spent: float = 0.0) -> None:
        self._budget = budget
        self._clock = clock
        self._start = clock() - spent
        self._why: Reason | None = None

    @property
    def interrupted(self) -> bool:
        return self._why is not None

    @property
    def seconds(self) -> float:
        return self._clock() - self._start

    @property
    def seconds_left(self) -> float | None:
        limit = self._budget.seconds
        return None if limit is None else max(0.0, limit - self.seconds)

    @property
    def used(self) -> float:
        """Share of the budget of time that is used up; 0 without one."""
        limit = self._budget.seconds
        return 0.0 if limit is None else self.seconds / limit

    def moment(self, before_end: float = 0.0) -> float:
        """So many seconds before the end of the budget, by the clock itself; inf without one."""
        limit = self._budget.seconds
        return math.inf if limit is None else self._start + limit - before_end

    def over(self, examples: int, findings: int, kept: float = 0.0) -> Reason | None:
        """Why to stop now, or None to go on.

        Args:
            examples: generated cases so far; -1 while the corpus runs.
            findings: reported so far.
            kept: seconds of the budget that are needed for something else.
        """
        if self._why is not None:
            return self._why
        if self._budget.findings is not None and findings >= self._budget.findings:
            return "findings"
        if self._budget.examples is not None and examples >= self._budget.examples:
            return "examples"
        left = self.seconds_left
        if left is not None and left <= kept:
            return "time"
        return None

    def interrupt(self, why: Reason = "interrupted") -> None:
        self._why = self._why or why
