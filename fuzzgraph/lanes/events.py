"""The log of a launch: one event for each load, store or atomic of a group of lanes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt

__all__ = ["Event"]

Array = npt.NDArray[Any]


@dataclass(slots=True, eq=False)
class Event:
    """One executed load, store or atomic of a group of lanes."""

    writes: bool
    addresses: Array
    """uint64 [n], in the order of execution."""
    programs: Array
    """int32 [n], the program that did it."""
    size: int
    """Bytes of each access."""
    source: str
    view: Any
    atomic: str = ""
    """Name of an atomic operation; "" for a plain access."""
    order_free: bool = False
    """Whether the final value does not depend on the order of such atomics."""
    used: bool = False
    """Whether the kernel used the old value that an atomic returned."""
    values: Array | None = None
    """[n], what a plain store wrote, as unsigned integers."""
    now: Callable[[], Array] | None = None
    """Returns [n], what is there now; None where that is not looked up."""

    @property
    def low(self) -> int:
        return int(self.addresses.min())

    @property
    def high(self) -> int:
        return int(self.addresses.max()) + self.size
