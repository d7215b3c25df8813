"""Heads of a layer of the delta rule, and what follows of how many and how wide they are.

The narrow ones of a layer are as wide as tells positions apart, and one block of an engine's
kernels covers them. Models have heads of 128 columns, of keys and of values: kernels loop over
blocks of these.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import prod


@dataclass(frozen=True, slots=True)
class LinearHeads:
    """Heads of queries and keys, all alike, and of values, of which several share one of those."""

    keys: int
    values: int
    key_width: int
    """Columns of a query and of a key: positions that have a key of their own, before keys come
    again."""
    value_width: int

    @property
    def state(self) -> tuple[int, int, int]:
        """Shape of a state: heads, columns of a value, columns of a key."""
        return self.values, self.value_width, self.key_width

    @property
    def numbers(self) -> int:
        """Of a state."""
        return prod(self.state)

    @property
    def output(self) -> int:
        """Columns of an output, and of all values."""
        return self.values * self.value_width

    @property
    def key_columns(self) -> int:
        """Of all keys, and of all queries."""
        return self.keys * self.key_width

    @property
    def columns(self) -> int:
        """Of the convolution's input: q, k, v."""
        return 2 * self.key_columns + self.output
