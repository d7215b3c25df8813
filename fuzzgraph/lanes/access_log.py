"""The log of a launch for the race check: an event for each load, store or atomic of a group."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzzgraph.lanes.argument_regions import View
from fuzzgraph.lanes.divergence import LoadsNotLogged
from fuzzgraph.lanes.kernel_source import kernel_line

Array = npt.NDArray[Any]

# Byte offset -> element index by a shift, which is faster than a division of uint64.
SHIFTS: Mapping[int, np.uint64] = {1 << n: np.uint64(n) for n in range(4)}


@dataclass(frozen=True, slots=True, eq=False)
class Added:
    """What one atomic addition of floats did."""

    amounts: Array
    """[n], in the order of execution."""
    before: Array
    """[n], what was there."""
    again: Callable[[Array, Array, Array, Array], None]
    """Puts content at addresses, then adds amounts at addresses, one after the other."""


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
    polls: bool = False
    """Whether it did no more than ask for that value: nothing changed by it."""
    values: Array | None = None
    """[n], what a plain store wrote, as unsigned integers."""
    now: Callable[[], Array] | None = None
    """Returns [n], what is there now; None where that is not looked up."""
    added: Added | None = None
    """What atomics added whose order changes the sum by a rounding, so that they can run again."""

    @property
    def low(self) -> int:
        return int(self.addresses.min())

    @property
    def high(self) -> int:
        return int(self.addresses.max()) + self.size


class AccessLog:
    """The events of one launch, in the order of execution.

    Args:
        views: of the arguments.
    """

    def __init__(self, views: Sequence[View]) -> None:
        self._views = views
        self.events: list[Event] = []

    def add(
        self,
        programs: Array,
        writes: bool,
        pointers: Array,
        mask: Array | None,
        size: int,
        view: View | None,
        values: Array | None = None,
    ) -> Event | None:
        """Log one access of a group; None if the mask is off everywhere.

        Args:
            programs: int32 [lanes] of the group.
            pointers: uint64 [lanes or 1, ...].
            values: what a store inside its view writes, flat; None for any other access.

        Raises:
            LoadsNotLogged: a store hit memory whose loads are missing in the log.
        """
        lanes = len(programs)
        shape = (lanes, *pointers.shape[1:])
        column = programs.reshape((lanes,) + (1,) * (len(shape) - 1))
        pointers, each = spread(pointers, shape), spread(column, shape)
        if mask is None:
            addresses: Array = pointers.ravel()
            who: Array = each.ravel()
        else:
            mask = spread(mask, shape)
            addresses, who = pointers[mask], each[mask]
        if not addresses.size:
            return None
        event = Event(writes, addresses, who, size, kernel_line(), view)
        if writes:
            if values is not None and view is not None:
                event.values, event.now = values, _reader(view, addresses, size)
            self._refuse_unlogged(view, event, outside=values is None)
        self.events.append(event)
        return event

    def _refuse_unlogged(self, view: View | None, event: Event, *, outside: bool) -> None:
        """Start the launch again if loads of the memory written now are missing in the log."""
        # A store that missed its view may hit any other; a store inside hits its aliases only.
        if outside or view is None:
            low, high = event.low, event.high
            met = [each for each in self._views if each.start < high and low < each.end]
        else:
            met = view.aliases
        missed = [each for each in met if each.unlogged]
        if missed:
            for each in missed:
                each.keeps_loads = True
            raise LoadsNotLogged


def spread(array: Array, shape: tuple[int, ...]) -> Array:
    """The array broadcast to a shape; most have it already, and numpy's own check is slow."""
    return array if array.shape == shape else np.broadcast_to(array, shape)


def _reader(view: View, addresses: Array, size: int) -> Any:
    """A function that reads these addresses later, once the launch is over."""

    def now() -> Array:
        index = ((addresses - np.uint64(view.start)) >> SHIFTS[size]).view(np.int64)
        found: Array = view.array(size)[index]
        return found

    return now
