"""Allocators of a serving engine: numbers given out, given back, and given out again."""

from __future__ import annotations

from collections.abc import Iterable
from functools import lru_cache
from math import gcd

import numpy as np

from fuzzgraph.splitmix import hash_counters

OTHER_ORDER = {
    "ascending": "descending",
    "descending": "ascending",
    "shuffled": "fragmented",
    "fragmented": "shuffled",
}
"""State slots are handed out in another order than rows, so that a mix-up shows."""


@lru_cache(maxsize=256)
def _order(order: str, seed: int, first: int, count: int) -> tuple[int, ...]:
    """`count` numbers from `first` in the order in which they are handed out, next one last."""
    if order == "ascending":
        return tuple(range(first + count - 1, first - 1, -1))
    if order == "descending":
        return tuple(range(first, first + count))
    if order == "shuffled":
        # Another key than the seed's own, which draws the tokens.
        keys = hash_counters(seed + 17, np.arange(count, dtype=np.uint64))
        return tuple((np.argsort(keys) + first).tolist())
    # Fragmented: steps of about a third of the pool, so that no two neighbours follow each other; a
    # stride without a common divisor visits every number once.
    stride = next(s for s in range(max(2, count // 3), count + 3) if gcd(s, count) == 1)
    return tuple((np.arange(count) * stride % count + first)[::-1].tolist())


class FreeList:
    """Numbers not in use; those freed last are handed out first unless the order is by value."""

    def __init__(self, order: str, seed: int, first: int, count: int) -> None:
        # Only a shuffle depends on the seed: the other orders are computed once.
        self._free = list(_order(order, seed if order == "shuffled" else 0, first, count))
        self._by_value = {"ascending": True, "descending": False}.get(order)

    def __len__(self) -> int:
        return len(self._free)

    def take(self, count: int) -> list[int]:
        """`count` numbers; check `len` first."""
        if not count:
            return []
        taken = self._free[-count:]
        del self._free[-count:]
        taken.reverse()
        return taken

    def give_back(self, numbers: Iterable[int]) -> None:
        self._free.extend(numbers)
        if self._by_value is not None:
            self._free.sort(reverse=self._by_value)
