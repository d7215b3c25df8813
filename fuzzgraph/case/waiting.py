"""Requests that a step passes over, and that go on later."""

from __future__ import annotations

from fuzzgraph.case.model import Case


def first_wait(case: Case) -> int | None:
    """The first step without a request that was there before, has not ended, and comes again."""
    last = {row.request: number for number, step in enumerate(case.steps) for row in step.rows}
    live: set[int] = set()
    for number, step in enumerate(case.steps):
        live -= set(step.finish)
        rows = {row.request for row in step.rows}
        if any(last[request] > number for request in live - rows):
            return number
        live |= rows
    return None
