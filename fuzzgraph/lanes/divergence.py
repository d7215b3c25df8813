"""Control flow inside the lanes: what ends or splits a vectorised run.

They derive from BaseException, so that neither a kernel's `except Exception` nor the interpreter's
own wrapping of errors can swallow one.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = [
    "ActiveLanes",
    "Divergence",
    "TooWide",
    "LoadsNotLogged",
    "NotVectorizable",
    "current",
    "deciding_for",
    "uniform",
]

Array = npt.NDArray[Any]


class Divergence(BaseException):
    """Lanes disagree on a value that Python is about to see.

    Args:
        keys: [lanes], equal where lanes may go on together.
    """

    def __init__(self, keys: Array) -> None:
        super().__init__(f"{len(keys)} lanes disagree")
        self.keys = keys


class NotVectorizable(BaseException):
    """The lanes cannot do this soundly: the stock interpreter has to run the launch."""


class TooWide(BaseException):
    """An intermediate would exceed the memory bound: fewer lanes at a time."""


class LoadsNotLogged(BaseException):
    """A buffer is written whose loads were not kept: run the launch again and keep them."""


class ActiveLanes:
    """Which lanes of a group still go along; those that were left behind run later, on their own.

    Lanes that disagree need not be run again all together: the many go on, the others wait. That
    takes memory that no lane of the group has written yet, or their past would have to be undone.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.active: Array | None = None
        """bool [lanes]; None while nobody was left behind."""
        self.set_aside: list[tuple[Array, Array]] = []
        """Lanes that were left behind, and what they would have answered."""
        self.stored = False
        """Whether the group has written anything."""
        self._gone = np.zeros(lanes, np.bool_)

    def majority(self, values: Array, keys: Array) -> Any:
        """The value that most lanes have; the others are left behind.

        Raises:
            Divergence: the group has written already.
        """
        if len(values) != self.lanes:
            raise Divergence(keys)
        alive = np.ones(self.lanes, np.bool_) if self.active is None else self.active
        chosen, first, counts = np.unique(keys[alive], return_index=True, return_counts=True)
        value = values[alive][first[counts.argmax()]]
        if len(chosen) > 1:
            if self.stored:
                raise Divergence(keys)
            leaving = alive & (keys != chosen[counts.argmax()])
            self.set_aside.append((np.flatnonzero(leaving), keys[leaving]))
            self._gone |= leaving
            self.active = alive & ~leaving
        return value

    def continue_with(self, which: Array) -> bool:
        """Go on with these lanes alone for a while, without those left behind; False if none is."""
        alive = which & ~self._gone
        self.active = None if alive.all() else alive
        return bool(alive.any())

    def continue_with_all(self) -> None:
        """Go on with every lane that was not left behind."""
        self.active = ~self._gone if self._gone.any() else None


_DECIDING: list[ActiveLanes] = []


@contextmanager
def deciding_for(active_lanes: ActiveLanes) -> Iterator[None]:
    """Let `uniform` ask these lanes."""
    _DECIDING.append(active_lanes)
    try:
        yield
    finally:
        _DECIDING.pop()


def current() -> ActiveLanes | None:
    """The lanes that decide now, None outside of a group."""
    return _DECIDING[-1] if _DECIDING else None


def uniform(values: Array) -> Any:
    """The value that all lanes have, or that those have which go on together.

    Floats are compared by bits, so that NaN equals itself.

    Raises:
        Divergence: the lanes have to be split.
    """
    first = values[0]
    if len(values) == 1:
        return first
    keys = values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "f" else values
    if (keys == keys[0]).all():
        return first
    if not _DECIDING:
        raise Divergence(keys)
    return _DECIDING[-1].majority(values, keys)
