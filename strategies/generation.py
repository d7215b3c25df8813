"""Draws cases with Hypothesis, block by block, so that a budget can end it between two cases.

Hypothesis only generates here. Shrinking works on cases, after a finding is confirmed, because
a shrink inside Hypothesis cannot be bounded by the clock nor tied to one finding. Nor is there a
`target()`: it was measured to reach less (ARCHITECTURE.md, decisions).
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from fuzzgraph.case import Case

__all__ = ["BLOCK", "draw"]

BLOCK = 400
"""Cases per block: the pool of configs changes from one to the next."""


class _Escaped(BaseException):
    """Carries an exception past Hypothesis, which would otherwise run the case again."""

    def __init__(self, error: Exception) -> None:
        super().__init__(error)
        self.error = error


def draw(
    strategy: SearchStrategy[Case], seed_value: int, count: int, run: Callable[[Case], None]
) -> None:
    """Hand up to `count` cases to `run`; whatever it raises ends the block.

    The same seed and strategy give the same cases. Health checks stay on: a strategy that filters
    too much or draws too slowly fails the campaign.
    """

    def run_outside(case: Case) -> None:
        try:
            run(case)
        except Exception as error:
            raise _Escaped(error) from None

    @seed(seed_value)
    @settings(
        max_examples=count, database=None, deadline=None, phases=(Phase.generate,), print_blob=False
    )
    @given(strategy)
    def block(case: Case) -> None:
        run_outside(case)

    try:
        block()
    except _Escaped as escaped:
        raise escaped.error from None
