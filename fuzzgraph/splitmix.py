"""SplitMix64: numbers that are the same on every machine, Python and numpy.

Python's own `random` promises that for `random()` alone, and numpy's generators not across
versions. What a stored case holds and what a config's number draws both follow from here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

import numpy as np
import numpy.typing as npt

_MASK = (1 << 64) - 1
_GAMMA = 0x9E3779B97F4A7C15
"""What the reference implementation adds to its state for each number."""
_MIX = (0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
"""Factors of its finalizer; the shifts between them are 30, 27 and 31 bits."""
_KEY_STRIDE = 0xDA942042E4DD58B5  # other than _GAMMA: neighbouring keys are no shifted copies
STRIDE = 0xD1B54A32D192ED03
"""Another odd number with well mixed bits, to spread a second counter by."""

T = TypeVar("T")


def hash_counters(key: int, counters: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """Splitmix64 of each counter under `key`: 64 well mixed bits, the same on every machine."""
    bits = counters * np.uint64(_GAMMA) + np.uint64(key * _KEY_STRIDE & _MASK)
    bits ^= bits >> np.uint64(30)
    bits *= np.uint64(_MIX[0])
    bits ^= bits >> np.uint64(27)
    bits *= np.uint64(_MIX[1])
    bits ^= bits >> np.uint64(31)
    return bits


def hash_quarters(key: int, rows: int, columns: int) -> npt.NDArray[np.float32]:
    """[rows, columns] multiples of 1/4 in [-2, 2], by place."""
    drawn = hash_counters(key, np.arange(rows * columns, dtype=np.uint64)) % np.uint64(17)
    quarters = drawn.astype(np.float32).reshape(rows, columns)
    quarters /= 4
    quarters -= 2
    return quarters


class Chance:
    """Choices that follow from a number and a salt alone.

    The same finalizer as `hash_counters`, on a Python int: numpy takes ten times as long for one.
    """

    __slots__ = ("_state",)

    def __init__(self, number: int, salt: int) -> None:
        self._state = (number * _GAMMA + (salt + 1) * STRIDE) & _MASK

    def below(self, limit: int) -> int:
        """One of 0..limit-1: the high half of a 128-bit product, so no bits are thrown away."""
        self._state = (self._state + _GAMMA) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * _MIX[0]) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * _MIX[1]) & _MASK
        return ((mixed ^ (mixed >> 31)) * limit) >> 64

    def pick(self, choices: Sequence[T]) -> T:
        """One of the choices, each as likely."""
        return choices[self.below(len(choices))]

    def percent(self, share: int) -> bool:
        """True in `share` of 100 draws."""
        return self.below(100) < share
