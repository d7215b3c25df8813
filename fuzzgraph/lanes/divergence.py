"""Splits lanes that disagree, and defines what ends a vectorised run."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[Any]


# These derive from BaseException, so that neither a kernel's `except Exception` nor the
# interpreter's own wrapping of errors can catch one.
class Divergence(BaseException):
    """Lanes disagree on a value that Python is about to see.

    Args:
        keys: [lanes], equal where lanes may go on together.
    """

    def __init__(self, keys: Array) -> None:
        super().__init__(f"{len(keys)} lanes disagree")
        self.keys = keys


class NotVectorizable(BaseException):
    """The lanes cannot run this with the same bytes: the stock interpreter has to."""


class Misordered(BaseException):
    """A program saw what a later one had left, or the other way round: run one after the other."""


class Waiting(BaseException):
    """Lanes wait for what programs of another group leave: those have to run first."""


class Deadlock(BaseException):
    """Programs wait for each other, on a device too."""


class TooWide(BaseException):
    """An intermediate would be too large: run fewer lanes at a time."""


class LoadsNotLogged(BaseException):
    """A store hit a buffer whose loads were not logged: run the launch again and log them."""


class ActiveLanes:
    """The lanes of a group that still run together; those set aside run later, on their own.

    Where lanes disagree, the majority goes on and the others are set aside. That is possible only
    while the group has written nothing: what a lane set aside has written could not be undone.
    """

    def __init__(self, lanes: int) -> None:
        self.lanes = lanes
        self.active: Array | None = None
        """bool [lanes]; None while all lanes run."""
        self.set_aside: list[tuple[Array, Array]] = []
        """(lanes set aside, their keys); lanes of equal keys may run together later."""
        self.stored = False
        """Whether the group has written anything."""
        self._gone = np.zeros(lanes, np.bool_)

    def majority(self, values: Array, keys: Array) -> Any:
        """The value that most active lanes have; the others are set aside.

        Raises:
            Divergence: the group has written already.
        """
        # A combine function sees elements as lanes of their own; those cannot be set aside.
        if len(values) != self.lanes:
            raise Divergence(keys)
        alive = np.ones(self.lanes, np.bool_) if self.active is None else self.active
        if values.dtype == np.bool_:
            return self._majority_of_two(values, alive)
        # In Python: few lanes, and numpy's `unique` takes as long as a whole operation of a kernel.
        present = keys[alive].tolist()
        counts = Counter(present)
        most = max(counts.values())
        chosen = min(key for key, count in counts.items() if count == most)
        value = values[alive][present.index(chosen)]
        if len(counts) > 1:
            self._set_aside(alive & (keys != chosen), alive, keys)
        return value

    def _majority_of_two(self, values: Array, alive: Array) -> Any:
        """The same for truth values, by counting: the most frequent ones by far."""
        on, off = int(np.count_nonzero(values & alive)), int(np.count_nonzero(alive))
        off -= on
        value = np.bool_(on > off)
        if on and off:
            self._set_aside(alive & (values != value), alive, values)
        return value

    def _set_aside(self, leaving: Array, alive: Array, keys: Array) -> None:
        if self.stored:
            raise Divergence(keys)
        self.set_aside.append((np.flatnonzero(leaving), keys[leaving]))
        self._gone |= leaving
        self.active = alive & ~leaving

    def continue_with(self, which: Array) -> bool:
        """Run only these of the lanes not set aside, for a while; False if there are none."""
        alive = which & ~self._gone
        self.active = None if alive.all() else alive
        return bool(alive.any())

    def halves(self) -> tuple[Array, Array]:
        """bool [lanes] each: those that run now, and those that pause for a while."""
        runs = np.ones(self.lanes, np.bool_) if self.active is None else self.active
        return runs, ~runs & ~self._gone

    def continue_with_all(self) -> None:
        """Run every lane again that was not set aside."""
        self.active = ~self._gone if self._gone.any() else None


_DECIDING: list[ActiveLanes] = []


class _Deciding:
    """Let `uniform` decide among these lanes."""

    # No generator: it is entered for every launch.
    __slots__ = ("_lanes",)

    def __init__(self, active_lanes: ActiveLanes) -> None:
        self._lanes = active_lanes

    def __enter__(self) -> None:
        _DECIDING.append(self._lanes)

    def __exit__(self, *_: object) -> None:
        _DECIDING.pop()


deciding_for = _Deciding


def current() -> ActiveLanes | None:
    """The lanes that `uniform` decides among; None outside of a group."""
    return _DECIDING[-1] if _DECIDING else None


def uniform(values: Array) -> Any:
    """The value that all lanes have, or the majority's.

    Raises:
        Divergence: the lanes have to be split.
    """
    first = values[0]
    if len(values) == 1:
        return first
    # Floats are compared by their bits, so that NaN equals itself.
    keys = values.view(f"u{values.dtype.itemsize}") if values.dtype.kind == "f" else values
    if (keys == keys[0]).all():
        return first
    if not _DECIDING:
        raise Divergence(keys)
    return _DECIDING[-1].majority(values, keys)
