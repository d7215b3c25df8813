"""Shrink a failing case to the one that a person would have written.

Hypothesis shrinks bytes and knows nothing of configs; this knows what they mean: whole steps and
requests go first, then features of the config, then numbers. Passes repeat until none helps. Each
candidate is simpler than the case that it replaces by one fixed order (`complexity`), so the
search ends, and it is deterministic.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from fuzzgraph.case import DIMENSIONS, Case, ReplayStep, encode_case, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.strategies.shrink_edits import Candidate
from fuzzgraph.strategies.shrink_passes import PASSES

StillFails = Callable[[Case], bool]


@dataclass(frozen=True, slots=True)
class Minimised:
    """The smallest failing case found, and what it took."""

    case: Case
    calls: int
    """How often `still_fails` was asked."""
    exhausted: bool
    """Whether the budget ended the search before a fixpoint."""


def minimise(case: Case, still_fails: StillFails, *, budget: int = 600) -> Case:
    """The smallest case found that still fails; `case` itself is taken to fail.

    Args:
        case: a failing case.
        still_fails: whether a candidate fails in the same way. Key it on the finding (oracle,
            buffer, step kind), or the search slips from one bug to another.
        budget: at most so many calls of `still_fails`.
    """
    return minimise_counting(case, still_fails, budget=budget).case


def minimise_counting(case: Case, still_fails: StillFails, *, budget: int = 600) -> Minimised:
    """Like `minimise`, with what it took."""
    search = _Search(case, still_fails, budget)
    try:
        while any([search.run(candidates) for candidates in PASSES]):
            pass
    except _BudgetSpent:
        return Minimised(search.best, search.calls, exhausted=True)
    return Minimised(search.best, search.calls, exhausted=False)


class _BudgetSpent(Exception):
    pass


class _Search:
    def __init__(self, case: Case, still_fails: StillFails, budget: int) -> None:
        self.best = case
        self.still_fails = still_fails
        self.budget = budget
        self.calls = 0
        self.asked = {encode_case(case)}

    def run(self, candidates: Callable[[Case], Iterator[Candidate]]) -> bool:
        """Take candidates until a whole sweep is through; whether any helped."""
        helped, more = False, True
        through: set[object] = set()
        while more:
            more = self._sweep(candidates(self.best), through)
            helped = helped or more
        return helped

    def _sweep(self, candidates: Iterator[Candidate], through: set[object]) -> bool:
        """Stop at the first candidate taken; sites passed without success are `through`."""
        last: object = None
        for site, candidate in candidates:
            if site in through:
                continue
            if last is not None and site != last:
                through.add(last)
            last = site
            if self._take(candidate):
                return True
        return False

    def _take(self, candidate: Case) -> bool:
        if complexity(candidate) >= complexity(self.best):
            return False
        text = encode_case(candidate)
        if text in self.asked or not _runs(candidate):
            return False
        self.asked.add(text)
        if self.calls >= self.budget:
            raise _BudgetSpent
        self.calls += 1
        if not self.still_fails(candidate):
            return False
        self.best = candidate
        return True


def _runs(case: Case) -> bool:
    try:
        plan(validate(case))
    except InvalidCase:
        return False
    return True


def complexity(case: Case) -> tuple[int, ...]:
    """How much a reader has to take in, the weightiest first.

    Compared as a tuple, so one step less outweighs any number of rows. What comes last decides
    only between cases that read alike, so that equal failures end in the same case.
    """
    config, steps = case.config, case.steps
    rows = [row for step in steps for row in step.rows]
    differing = [
        name
        for name, row in DIMENSIONS.items()
        if not row.spec.size and getattr(config, name) != row.default
    ]
    return (
        len(steps),
        len(rows),
        len({row.request for row in rows}),
        len(differing) + len(config.modes),
        sum(map(_peculiarities, steps)),
        sum(step.mode != "decode" for step in steps),
        len(config.capture_bs) + len(config.capture_tokens),
        case.shared_prefix_pages + (case.page_order != "ascending") + (case.seed > 0),
        sum(value for name in differing if isinstance(value := getattr(config, name), int)),
        config.max_context_len + sum(config.capture_bs) + sum(config.capture_tokens),
        sum(row.seq_len + row.new_tokens + row.encoder_len + row.adapter for row in rows),
        sum(sum(step.other_ranks) for step in steps),
        config.req_pool_size != DIMENSIONS["req_pool_size"].default,
        config.kv_pool_pages != DIMENSIONS["kv_pool_pages"].default,
        config.req_pool_size,
        case.seed,
        sum(row.request for row in rows),
        sum(len(step.rows) > 1 and step.rows[0].request for step in steps),
        config.kv_pool_pages,
        sum(row.seq_len * left for left, step in _countdown(steps) for row in step.rows),
    )


def _peculiarities(step: ReplayStep) -> int:
    """What the step has that most steps have not."""
    ranks = bool(step.other_ranks) + step.others_prefill
    return len(step.finish) + step.mrope + (step.via == "eager") + ranks


def _countdown(steps: tuple[ReplayStep, ...]) -> Iterator[tuple[int, ReplayStep]]:
    """Each step with the number of those from it on, so that what comes late weighs less."""
    return zip(range(len(steps), 0, -1), steps, strict=True)
