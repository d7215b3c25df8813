"""Ways to change a case while shrinking it: cut a list, lower a number, swap a step or a row."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

import msgspec

from fuzzgraph.case import BatchRow, Case
from fuzzgraph.strategies.repair import with_steps

Candidate = tuple[object, Case]
"""The site changed, and the case with it changed."""
T = TypeVar("T")
_replace = msgspec.structs.replace


def cuts(items: Sequence[T]) -> Iterator[list[T]]:
    """What is left when a chunk is cut out: halves first, then quarters, down to single items."""
    size = max(1, len(items) // 2)
    while size:
        for start in range(len(items) - size, -1, -size):
            yield [*items[:start], *items[start + size :]]
        size //= 2


def smaller(number: int, least: int) -> Iterator[int]:
    """Numbers below, from the smallest: the least ones, then by halving the distance.

    None below a number that is less than `least` already, as where another dimension forced it.
    """
    tried = set()
    for candidate in (least, least + 1, least + 2):
        if candidate < number:
            tried.add(candidate)
            yield candidate
    # Not `while step`: halves of a negative number end at -1 and never at 0.
    step = (number - least) // 2
    while step > 0:
        if number - step not in tried:
            yield number - step
        step //= 2


def map_rows(case: Case, change: Callable[[BatchRow], BatchRow]) -> Case:
    return with_steps(
        case, (_replace(step, rows=tuple(map(change, step.rows))) for step in case.steps)
    )


def swap_step(case: Case, index: int, **changes: Any) -> Case:
    steps = list(case.steps)
    steps[index] = _replace(steps[index], **changes)
    return with_steps(case, steps)


def swap_row(case: Case, at: int, place: int, **changes: Any) -> Case:
    rows = list(case.steps[at].rows)
    rows[place] = _replace(rows[place], **changes)
    return swap_step(case, at, rows=tuple(rows))
