"""Which generated case comes next, also where a killed run goes on within a block of them.

A block is drawn again from its seed; the cases that the log has counted are passed over, so that a
killed and resumed run runs each of its examples once, as the unbroken one does.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.strategies import SearchStrategy

from fuzzgraph.campaign.tally import Tally
from fuzzgraph.case import Case, digest
from fuzzgraph.run_spec import RunSpec
from fuzzgraph.strategies import block_size, draw

__all__ = ["Blocks", "StrategyOf"]

StrategyOf = Callable[[int], SearchStrategy[Case]]
"""The strategy of a block, by a number: another pool of configs for another number."""


class Blocks:
    """Hands out the cases of block after block.

    Args:
        look: called before each case; raises to end the search.
        run: runs a case.
    """

    def __init__(
        self,
        plan: RunSpec,
        strategy: StrategyOf,
        tally: Tally,
        *,
        look: Callable[[], None],
        run: Callable[[Case], None],
    ) -> None:
        self._plan = plan
        self._strategy = strategy
        self._tally = tally
        self._look = look
        self._run = run

    def run_first(self, case: Case) -> None:
        """Run a case ahead of its turn: the one that was being run when the run was killed."""
        self._look()
        self._tally.ahead.add(digest(case))
        self._run(case)

    def run_all(self) -> None:
        """Run case after case until something raises."""
        while True:
            self._run_block(self._tally.block, self._tally.drawn)
            self._tally.block += 1
            self._tally.drawn = 0

    def _run_block(self, block: int, drawn: int) -> None:
        number = self._plan.block_seed(block)
        passed = 0

        def take(case: Case) -> None:
            nonlocal passed
            if passed < drawn:
                passed += 1
                return
            self._take(case)

        draw(self._strategy(number), number, block_size(block), take)
        self._look()

    def _take(self, case: Case) -> None:
        self._look()
        self._tally.drawn += 1  # before it runs: whoever counts it may tell of it meanwhile
        if self._tally.ahead and digest(case) in self._tally.ahead:
            self._tally.ahead.discard(digest(case))
            return
        self._run(case)
