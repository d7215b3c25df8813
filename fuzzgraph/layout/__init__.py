"""From a case to the logical truth of each step: rows, pages, slots, tokens.

`plan` plays the scheduler and the allocators of a serving engine: requests come and go, their
rows, pages and state slots are freed and given out again, prefixes share pages. What the slots
hold is `content`'s job; tensors and padding are the engine's.
"""

from __future__ import annotations

from fuzzgraph.case import Case
from fuzzgraph.layout.scheduler import Scheduler
from fuzzgraph.world import Batch

__all__ = ["plan"]


def plan(case: Case) -> tuple[Batch, ...]:
    """The batch of every step, in order; same case, same arrays, on every machine.

    Args:
        case: validated by `case.validate`.
    Raises:
        InvalidCase: the pages or rows of the config do not suffice; names the step and request.
    """
    scheduler = Scheduler(case)
    return tuple(scheduler.step(index, step) for index, step in enumerate(case.steps))
