"""A counter-based generator: what a number means must be the same on every machine and Python."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

__all__ = ["Chance"]

_MASK = (1 << 64) - 1

T = TypeVar("T")


class Chance:
    """Choices that follow from a number and a salt alone (SplitMix64)."""

    __slots__ = ("_state",)

    def __init__(self, number: int, salt: int) -> None:
        self._state = (number * 0x9E3779B97F4A7C15 + (salt + 1) * 0xD1B54A32D192ED03) & _MASK

    def below(self, limit: int) -> int:
        self._state = (self._state + 0x9E3779B97F4A7C15) & _MASK
        mixed = self._state
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & _MASK
        return ((mixed ^ (mixed >> 31)) * limit) >> 64

    def pick(self, choices: Sequence[T]) -> T:
        return choices[self.below(len(choices))]

    def percent(self, share: int) -> bool:
        return self.below(100) < share
