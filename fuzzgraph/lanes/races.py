"""Finds races between programs of a launch, from a log of what each program touched.

Lanes execute a launch statement by statement, the stock interpreter program by program. Both orders
give the same bytes unless one program touches what another writes, so every launch with stores is
checked. A conflict is a race to report, since a device promises no order. And if the lanes touched
such a place in another order than that of the programs, the launch has to be run again by the
stock interpreter; sums of atomics alone are added up again in the order of the programs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt

from fuzzgraph.lanes.access_log import Event
from fuzzgraph.lanes.late_sums import LateSums, late_sums

__all__ = ["Conflict", "Event", "RaceCheck", "check_races"]

Array = npt.NDArray[Any]

# A table with an entry for every place of a cluster is fast, but most of it is empty where accesses
# are few and far apart. From this many times the number of accesses on, places are numbered by a
# sort instead.
_SPARSE = 8


@dataclass(frozen=True, slots=True, eq=False)
class Conflict:
    """Places that several programs touched, with at least one plain write among the accesses."""

    write: Event
    other: Event
    address: int
    programs: tuple[int, int]
    places: int
    same_value: bool
    """Whether every write left what was there in the end, or the last one of each program."""


@dataclass(frozen=True, slots=True, eq=False)
class RaceCheck:
    """The races of a launch."""

    conflicts: tuple[Conflict, ...]
    """One for each cluster of overlapping memory."""
    misordered: bool
    """Whether the lanes touched a place in another order than that of the programs."""
    late_sums: tuple[LateSums, ...] = ()
    """Where only atomics that add were out of order."""


def check_races(events: Sequence[Event]) -> RaceCheck:
    """Find the races of a launch, and whether the order of lanes can have changed its result."""
    found: list[Conflict] = []
    late: list[LateSums] = []
    misordered = False
    for cluster in _clusters([event for event in events if len(event.addresses)]):
        if any(event.writes for event in cluster):
            if len(cluster) == 1 and _ascends(cluster[0]):
                continue
            # Nearly all launches end here: each place was touched by one program only.
            places = _Places(cluster)
            raced = _raced(cluster, places)
            if raced.any():
                meeting = _Meeting(cluster, places, raced)
                misordered |= meeting.misordered()
                if (sums := meeting.late_sums()) is not None:
                    late.append(sums)
                if (conflict := meeting.conflict()) is not None:
                    found.append(conflict)
    return RaceCheck(tuple(found), misordered, tuple(late))


def _ascends(event: Event) -> bool:
    """Whether an event touches each place once, which ascending addresses show at once."""
    addresses = event.addresses
    return bool((addresses[1:] >= addresses[:-1] + np.uint64(event.size)).all())


def _clusters(events: Sequence[Event]) -> Iterator[list[Event]]:
    """Groups of events whose address ranges overlap, directly or through other events.

    Each group is in the order of execution.
    """
    # Sorted by start: a gap before the next start closes the present group.
    spans = sorted((event.low, event.high, index) for index, event in enumerate(events))
    members: list[int] = []
    reach = 0
    for low, high, index in spans:
        if members and low >= reach:
            yield [events[each] for each in sorted(members)]
            members = []
            reach = 0
        members.append(index)
        reach = max(reach, high)
    if members:
        yield [events[each] for each in sorted(members)]


def _raced(cluster: Sequence[Event], places: _Places) -> Array:
    """bool [places]: one program wrote here, and another one read or wrote."""
    # Writes first, so that every read is compared with a final owner, whichever came first in
    # time. `owner` has one program per place; two writers are noticed when the second one comes.
    owner = np.full(places.count, -1, dtype=np.int32)
    raced = np.zeros(places.count, dtype=np.bool_)
    for event in cluster:
        if event.writes:
            where, programs = places.of(event)
            before = owner[where]
            owner[where] = programs
            # The first part finds a writer from an earlier event. The second one finds two writers
            # within this event: of equal places, the assignment above kept the last program.
            clash = ((before >= 0) & (before != programs)) | (owner[where] != programs)
            raced[where[clash]] = True
    for event in cluster:
        if not event.writes:
            where, programs = places.of(event)
            before = owner[where]
            raced[where[(before >= 0) & (before != programs)]] = True
    return raced


class _Places:
    """Numbers the places that the events of a cluster touch.

    A place is as many bytes as divide the size of every access, and 1 if an access is not aligned
    to that.
    """

    def __init__(self, cluster: Sequence[Event]) -> None:
        self.base = min(event.low for event in cluster)
        unit = 0
        for event in cluster:
            unit = gcd(unit, event.size)
        for event in cluster:
            offsets = event.addresses - np.uint64(self.base)
            if unit > 1 and (offsets % np.uint64(unit)).any():
                unit = 1
        self.unit = unit
        length = -(-(max(event.high for event in cluster) - self.base) // unit)
        accesses = sum(len(event.addresses) * (event.size // unit) for event in cluster)
        self._known: Array | None = None
        self.count = length
        # 4096 places more: tables that small are cheap in any case.
        if length > _SPARSE * accesses + 4096:
            every = [self._raw(event)[0] for event in cluster]
            self._known = np.unique(np.concatenate(every))
            self.count = len(self._known)

    def _raw(self, event: Event) -> tuple[Array, Array]:
        first = ((event.addresses - np.uint64(self.base)) // np.uint64(self.unit)).astype(np.int64)
        # An access wider than the unit touches several places.
        wide = event.size // self.unit
        if wide == 1:
            return first, event.programs
        return (first[:, None] + np.arange(wide)).ravel(), np.repeat(event.programs, wide)

    def of(self, event: Event) -> tuple[Array, Array]:
        """Place numbers of an event and the program at each, in order of execution."""
        where, programs = self._raw(event)
        if self._known is not None:
            where = np.searchsorted(self._known, where)
        return where, programs

    def address(self, place: int) -> int:
        number = place if self._known is None else int(self._known[place])
        return self.base + number * self.unit


class _Meeting:
    """All accesses to the raced places of a cluster: by place, then in order of execution."""

    def __init__(self, cluster: Sequence[Event], places: _Places, raced: Array) -> None:
        self.cluster = cluster
        self.places = places
        parts: list[tuple[Array, Array, Array]] = []
        for number, event in enumerate(cluster):
            place, program = places.of(event)
            kept = raced[place]
            parts.append((place[kept], program[kept], np.full(int(kept.sum()), number)))
        place, self.program, self.number = (
            np.concatenate(columns) for columns in zip(*parts, strict=True)
        )
        # Stable, so that accesses to one place stay in the order of execution.
        order = np.argsort(place, kind="stable")
        self.place, self.program, self.number = (
            column[order] for column in (place, self.program, self.number)
        )

    def misordered(self) -> bool:
        """Whether a lower program came after a higher one at a place where the order matters."""
        # Atomics of one kind whose old values nobody used give the same in any order.
        free = self._all_of(lambda event: event.order_free and not event.used) & self._one_kind()
        return bool((self._backwards & ~free & ~self._sums).any())

    def late_sums(self) -> LateSums | None:
        """The sums at places where additions alone were out of order; None if there are none."""
        wanted = np.unique(self.place[self._backwards & self._sums])
        if not len(wanted):
            return None
        return late_sums(
            (event, np.isin(self.places.of(event)[0], wanted)) for event in self.cluster
        )

    @cached_property
    def _backwards(self) -> Array:
        """bool [accesses]: whether the one before it at the same place is of a higher program."""
        behind = (self.place[1:] == self.place[:-1]) & (self.program[1:] < self.program[:-1])
        found: Array = np.r_[False, behind]
        return found

    @cached_property
    def _sums(self) -> Array:
        """bool [accesses]: whether nothing but one kind of addition touched the same place."""
        size = self.places.unit
        sums = self._all_of(lambda event: event.added is not None and event.size == size)
        found: Array = sums & self._all_of(lambda event: not event.used) & self._one_kind()
        return found

    def conflict(self) -> Conflict | None:
        """The first raced place in detail; None if atomics met nothing but atomics."""
        plain = ~self._all_of(lambda event: bool(event.atomic))
        if not plain.any():
            return None
        first = int(self.place[plain][0])
        here = np.flatnonzero(self.place == first)
        write = next(i for i in here if self._event(i).writes)
        other = next(i for i in here if self.program[i] != self.program[write])
        return Conflict(
            write=self._event(write),
            other=self._event(other),
            address=self.places.address(first),
            programs=(int(self.program[write]), int(self.program[other])),
            places=len(np.unique(self.place[plain])),
            same_value=self._same_value(),
        )

    def _event(self, index: Any) -> Event:
        return self.cluster[int(self.number[index])]

    def _all_of(self, holds: Callable[[Event], bool]) -> Array:
        """bool [accesses]: whether it holds for every access to the same place."""
        each = np.array([holds(event) for event in self.cluster])[self.number]
        starts = np.flatnonzero(np.r_[True, self.place[1:] != self.place[:-1]])
        counts = np.diff(np.r_[starts, len(self.place)])
        return np.repeat(np.logical_and.reduceat(each, starts), counts)

    def _one_kind(self) -> Array:
        """bool [accesses]: whether one kind of atomic alone touched the same place."""
        names = sorted({event.atomic for event in self.cluster})
        kinds = np.array([names.index(event.atomic) for event in self.cluster])[self.number]
        starts = np.flatnonzero(np.r_[True, self.place[1:] != self.place[:-1]])
        counts = np.diff(np.r_[starts, len(self.place)])
        same = np.minimum.reduceat(kinds, starts) == np.maximum.reduceat(kinds, starts)
        return np.repeat(same, counts)

    def _same_value(self) -> bool:
        """Whether all plain writes to the raced places agree with what is there now.

        Of several writes of one program the last has to, where nothing reads such a place: a launch
        ends with the last write of some program, whatever the order of programs.
        """
        # False where that is not known: for atomics, partial writes and stores outside their view.
        read = not all(self.cluster[number].writes for number in np.unique(self.number))
        programs = int(self.program.max()) + 1
        later = np.zeros(0, dtype=np.int64)
        for event in reversed(self.cluster):
            if event.writes:
                if event.values is None or event.now is None or event.size != self.places.unit:
                    return False
                where, by = self.places.of(event)
                kept = np.isin(where, self.place)
                written = where * programs + by
                last = kept if read else kept & ~np.isin(written, later)
                if (event.now()[last] != event.values[last]).any():
                    return False
                later = np.concatenate((later, written[kept]))
        return True
