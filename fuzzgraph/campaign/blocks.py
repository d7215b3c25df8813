"""Which generated case comes next, also where a killed run goes on within a block of them.

A block is drawn again from its seed; the cases that the log has counted are passed over, so that a
killed and resumed run runs each of its examples once, as the unbroken one does.
"""

from __future__ import annotations

from collections.abc import Callable

from hypothesis.strategies import SearchStrategy

from fuzzgraph.campaign.live_run import LiveRun
from fuzzgraph.case import Case, digest
from fuzzgraph.strategies import block_size, draw

StrategyOf = Callable[[int], SearchStrategy[Case]]
"""The strategy of a block, by a number: another pool of configs for another number."""


class Blocks:
    """Hands out the cases of block after block.

    Args:
        before: called before each case; raises to end the search.
        run_case: runs a case.
    """

    def __init__(
        self,
        run: LiveRun,
        strategy: StrategyOf,
        before: Callable[[], None],
        run_case: Callable[[Case], None],
    ) -> None:
        self._run = run
        self._strategy = strategy
        self._before = before
        self._run_case = run_case

    def run_first(self, case: Case) -> None:
        """Run a case ahead of its turn: the one that was being run when the run was killed."""
        self._before()
        self._run.ahead.add(digest(case))
        self._run_case(case)

    def run_all(self) -> None:
        """Run case after case until something raises."""
        while True:
            self._run_block(self._run.block, self._run.drawn)
            self._run.block += 1
            self._run.drawn = 0

    def _run_block(self, block: int, drawn: int) -> None:
        seed = self._run.spec.block_seed(block)
        passed = 0

        def take(case: Case) -> None:
            nonlocal passed
            if passed < drawn:
                passed += 1
                return
            self._take(case)

        draw(self._strategy(seed), seed, block_size(block), take)
        self._before()

    def _take(self, case: Case) -> None:
        self._before()
        # Counted before it runs: a Progress within the case must not make a resume draw it again,
        # for the case itself is on disk and is run first then.
        self._run.drawn += 1
        if self._run.ahead and digest(case) in self._run.ahead:
            self._run.ahead.discard(digest(case))
            return
        self._run_case(case)
