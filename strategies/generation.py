"""Draws cases with Hypothesis, block by block, so that a budget can end it between two cases.

Hypothesis only generates here. Shrinking works on cases, after a finding is confirmed, because
a shrink inside Hypothesis cannot be bounded by the clock nor tied to one finding. Nor is there a
`target()`: measured, it covered less (ARCHITECTURE.md, decisions).
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import Phase, given, seed, settings
from hypothesis.strategies import SearchStrategy

from fuzzgraph.case import Case

BLOCK = 400
"""Cases of a block, once the search has begun with shorter ones."""
_FIRST, _SHORT = 10, 100


def block_size(block: int) -> int:
    """Cases of the block with this number, from 0 on; each has another pool of configs.

    The first thousand cases change it often, since many bugs need the right config more than the
    right history. Later blocks keep theirs for longer, since opening a config costs as much as
    many cases.

    >>> sum(map(block_size, range(10))), block_size(10)
    (1000, 400)
    """
    return _SHORT if block < _FIRST else BLOCK


class _Escaped(BaseException):
    """Carries an exception past Hypothesis, which would otherwise run the case again."""

    def __init__(self, error: BaseException) -> None:
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
        except (Exception, SystemExit, GeneratorExit) as error:
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
