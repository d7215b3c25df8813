"""Tells lanes that wait for others: they ask one place again and again, and nothing changes.

Programs of a persistent grid wait so for what a later one leaves (a lock, a flag). On a device both
run at once. Groups of lanes run one after the other, so one that waits has to make room.
"""

from __future__ import annotations

from typing import Any

import numpy.typing as npt

from fuzzgraph.lanes.divergence import Waiting

Array = npt.NDArray[Any]

_PATIENCE = 64
"""Equal answers in a row that a kernel looks at before it counts as waiting; one that takes what an
atomic returns for a value asks less often, or hears something else."""


class Polling:
    """What the atomics of a group returned last."""

    def __init__(self) -> None:
        self._asked: tuple[str, bytes, bytes] | None = None
        self._times = 0

    def carried_out(self, name: str, places: Array, on: Array) -> None:
        """Note an atomic; one of another kind or at other places is a step forward."""
        if self._asked is not None and (name, places[on].tobytes()) != self._asked[:2]:
            self._asked, self._times = None, 0

    def answered(self, name: str, places: Array, on: Array, found: Array) -> None:
        """Count an answer that the kernel looks at.

        Args:
            name: of the atomic; it was carried out at those `places` that are `on`, and returned
                `found`.

        Raises:
            Waiting: it is the same as many times before, with no other atomic between.
        """
        asked = name, places[on].tobytes(), found[on].tobytes()
        self._times = self._times + 1 if asked == self._asked else 1
        self._asked = asked
        if self._times > _PATIENCE:
            raise Waiting
