"""Sums of floats by atomics, added up again in the order of the programs.

The order decides how such a sum is rounded. Lanes add statement by statement, and lanes that
diverged add later than others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzzgraph.lanes.access_log import Event

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, eq=False)
class LateSums:
    """Atomics that added up floats in another order than that of the programs, at some places."""

    places: Array
    """uint64 [places]"""
    before: Array
    """[places], what was there before the launch."""
    addresses: Array
    """uint64 [n], of all additions, in the order of the programs."""
    amounts: Array
    again: Callable[[Array, Array, Array, Array], None]

    def add_up(self) -> None:
        """Leave what the additions leave in the order of the programs."""
        self.again(self.places, self.before, self.addresses, self.amounts)


def late_sums(events: Iterable[tuple[Event, Array]]) -> LateSums:
    """The sums at some places.

    Args:
        events: every event that touches the places, all of them additions, in the order of
            execution; with it bool [n], which of its accesses touch them.
    """
    parts = []
    for event, there in events:
        if there.any():
            added = event.added
            assert added is not None
            again = added.again
            columns = event.addresses, event.programs, added.amounts, added.before
            parts.append([column[there] for column in columns])
    addresses, programs, amounts, before = map(np.concatenate, zip(*parts, strict=True))
    # What the first addition found, in the order of execution, is what no other one had changed.
    places, first = np.unique(addresses, return_index=True)
    order = np.argsort(programs, kind="stable")
    return LateSums(places, before[first], addresses[order], amounts[order], again)
