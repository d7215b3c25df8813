"""Which dimension values cases have covered, and which two of them in one case.

Names are opaque here: `coverage_values` gives those of a case. Pairs count because most
historical bugs need two conditions at once, e.g. a large page *and* a smaller batch than before.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping

import msgspec


class Coverage(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a run has covered, small enough for a record."""

    cases: dict[str, int] = {}
    """Dimension value -> cases that had it, in the order of first sight."""
    together: tuple[str, ...] = ()
    """For each name, in that order, the names it shared a case with: a bit set in hex, bit i for
    the i-th name. A name is never in its own set."""

    @property
    def pairs(self) -> int:
        """Pairs of names that some case had at once."""
        return sum(_mask(text).bit_count() for text in self.together) // 2

    def met(self) -> Mapping[str, frozenset[str]]:
        """Name -> the names it shared a case with."""
        names = list(self.cases)
        return {
            name: frozenset(names[bit] for bit in _bits(_mask(text)) if bit < len(names))
            for name, text in zip(names, self.together, strict=False)
        }


class CoverageMap:
    """Takes in case after case; adding one costs a few microseconds."""

    def __init__(self) -> None:
        self._index: dict[str, int] = {}
        self._cases: list[int] = []
        self._masks: list[int] = []

    def add(self, names: Iterable[str]) -> int:
        """Count a case with these names; how many pairs it is the first to cover."""
        names = list(names)
        numbers = [self._number(name) for name in names]
        mask = sum(1 << number for number in numbers)
        fresh = 0
        for number in numbers:
            self._cases[number] += 1
            seen = self._masks[number]
            fresh += (mask & ~seen & ~(1 << number)).bit_count()
            self._masks[number] = seen | (mask & ~(1 << number))
        return fresh // 2  # each pair was counted from both its ends

    def absorb(self, other: Coverage) -> None:
        """Add what another shard, or this run before it was killed, has covered."""
        numbers = [self._number(name) for name in other.cases]
        for number, count in zip(numbers, other.cases.values(), strict=True):
            self._cases[number] += count
        for number, text in zip(numbers, other.together, strict=False):
            for bit in _bits(_mask(text)):
                if bit < len(numbers):
                    self._masks[number] |= 1 << numbers[bit]

    @property
    def dimensions(self) -> int:
        return len(self._index)

    @property
    def pairs(self) -> int:
        return sum(mask.bit_count() for mask in self._masks) // 2

    def record(self) -> Coverage:
        return Coverage(
            cases=dict(zip(self._index, self._cases, strict=True)),
            together=tuple(f"{mask:x}" for mask in self._masks),
        )

    def _number(self, name: str) -> int:
        number = self._index.setdefault(name, len(self._index))
        if number == len(self._cases):
            self._cases.append(0)
            self._masks.append(0)
        return number


def pairs_of(names: Iterable[str]) -> Iterator[tuple[str, str]]:
    """All pairs of a case's names, each in alphabetical order.

    >>> list(pairs_of({"b", "a"}))
    [('a', 'b')]
    """
    ordered = sorted(names)
    for position, first in enumerate(ordered):
        for second in ordered[position + 1 :]:
            yield first, second


def _mask(text: str) -> int:
    try:
        return int(text, 16)
    except ValueError:
        return 0


def _bits(mask: int) -> Iterator[int]:
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low
