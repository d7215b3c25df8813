"""What a config draws while its features are made to agree: a stream for each field.

What one field draws says nothing of what another does, so that any two of their values meet. A draw
follows from the config's number and the field alone: it stays when a shrinker lowers sizes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TypeVar
from zlib import crc32

from fuzzgraph.splitmix import Chance

T = TypeVar("T")


_TURNS = 1 << 40
"""Added to a salt: whose turn it is says nothing of what is drawn with that salt."""


def is_turn(number: int, salt: int, share: int) -> bool:
    """Whether it is this config's turn to have what `share` of 100 configs have.

    Consecutive numbers form windows of 100 / share configs, and chance gives each window one. By
    chances alone what 12 percent have would be missing from every fifth pool of twelve configs.
    """
    window = number * share // 100
    begin, end = (-(-place * 100 // share) for place in (window, window + 1))
    return number == begin + Chance(window, _TURNS + salt).below(end - begin)


class Draws:
    """The draws of one config.

    Args:
        number: of the config. The simplest one, 0, draws the first of all choices, and nothing
            that only some configs have.
    """

    __slots__ = ("_drawn", "_number")

    def __init__(self, number: int) -> None:
        self._number = number
        self._drawn: Counter[str] = Counter()

    def below(self, field: str, limit: int) -> int:
        """One of 0..limit-1; 0 in the simplest config.

        Of `limit` consecutive configs each draws another one, in an order of chance.
        """
        if not self._number:
            return 0
        window, place = divmod(self._number, limit)
        chance, order = Chance(window, self._salt(field)), list(range(limit))
        for last in range(limit - 1, place - 1, -1):
            other = chance.below(last + 1)
            order[last], order[other] = order[other], order[last]
        return order[place]

    def pick(self, field: str, choices: Sequence[T]) -> T:
        """One of the choices, each as often; the first in the simplest config."""
        return choices[self.below(field, len(choices))]

    def percent(self, field: str, share: int) -> bool:
        """True in `share` of 100 configs, by turns; never in the simplest one."""
        return bool(self._number) and is_turn(self._number, self._salt(field), share)

    def _salt(self, field: str) -> int:
        """A number for each draw of a field; larger than any feature's, whose draws are apart."""
        self._drawn[field] += 1
        return crc32(f"{field} {self._drawn[field]}".encode()) + (1 << 20)
