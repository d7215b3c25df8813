"""The slow check of accesses that are not plainly inside: records which elements miss, and where.

Elements in known memory are accessed, as a device would; all others read 0 and write nothing. The
stock interpreter would follow any address and crash the process.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
from triton._C.libtriton import interpreter

from fuzzgraph.accesses import Access, AccessKind, Where
from fuzzgraph.lanes.argument_regions import KnownMemory, Named, RegionMap, View, mapped_memory
from fuzzgraph.lanes.journal import Journal
from fuzzgraph.lanes.kernel_source import kernel_line
from fuzzgraph.lanes.report import LaneReport

Array = npt.NDArray[Any]
Grid = tuple[int, int, int]


class _Group(Protocol):
    """The running programs, and the list that takes their records."""

    programs: Array
    found: list[Access]
    journal: Journal


class BoundsChecker:
    """Checks of one launch, element by element.

    Args:
        known: returns memory that may be dereferenced.
        regions: names memory by address; None if nothing does.
    """

    def __init__(
        self,
        kernel: str,
        grid: Grid,
        known: Callable[[], KnownMemory],
        views: Sequence[View],
        regions: RegionMap | None,
        report: LaneReport,
    ) -> None:
        self._kernel = kernel
        self._grid = grid
        self._known = known
        self._regions = regions
        self._report = report

    @property
    def unchecked(self) -> int:
        """Accesses of all launches so far that could not be checked."""
        return self._report.unchecked

    @unchecked.setter
    def unchecked(self, count: int) -> None:
        self._report.unchecked = count

    def check(
        self,
        group: _Group,
        kind: AccessKind,
        view: View | None,
        pointers: Array,
        active: Array,
        size: int,
    ) -> Array:
        """Record the elements that miss their memory.

        Args:
            pointers: uint64 [lanes or 1, ...].
            active: bool, same shape.

        Returns:
            bool, same shape: active and safe to dereference.
        """
        known = self._known().holds(pointers, size)
        if view is None:
            return self._check_loaded(group, kind, pointers, active, known, size)
        # Unsigned: a pointer before the view gives a huge offset, so one comparison checks both
        # ends.
        offsets = pointers - np.uint64(view.start)
        fits = np.zeros(pointers.shape, np.bool_)
        if view.nbytes >= size:
            fits = offsets <= np.uint64(view.nbytes - size)
        wrong: list[tuple[Where, Array]] = [
            ("outside", active & ~fits & known),
            ("unmapped", active & ~fits & ~known),
        ]
        for where, table in (("between", view.allowed), ("unwritten", view.written)):
            # Storing to an unwritten element is what makes it written.
            if table is not None and (where == "between" or kind == "read"):
                element = np.where(fits, offsets // np.uint64(view.itemsize), np.uint64(0))
                good = table[element.astype(np.int64)]
                wrong.append((where, active & fits & ~good))  # type: ignore[arg-type]
        for where, elements in wrong:
            if elements.any():
                self._record(group, kind, where, _Place.of(view), pointers, elements)
        if view.written is not None and kind == "write":
            done = (offsets[active & fits] // np.uint64(view.itemsize)).astype(np.int64)
            group.journal.save(view.written, done)
            view.written[done] = True
        return active & (fits | known)

    def _check_loaded(
        self,
        group: _Group,
        kind: AccessKind,
        pointers: Array,
        active: Array,
        known: Array,
        size: int,
    ) -> Array:
        """Check accesses through loaded pointers against the region that each one points into."""
        strange = active & ~known
        reachable = active & known
        left = reachable.copy()
        if strange.any():
            reachable |= self._strange(group, kind, pointers, strange, size)
        # Region by region, from the lowest address up, since the pointers may lead to many. The
        # lowest pointer always counts as done, so that the loop ends.
        while left.any():
            first = int(pointers[left].min())
            name, start, end = self._region_at(first)
            here = left & ((pointers < np.uint64(max(end, first))) | (pointers == np.uint64(first)))
            wrong = here & ((pointers < np.uint64(start)) | (pointers > np.uint64(end - size)))
            if wrong.any():
                place = _Place("?", name, start, end - start, size)
                self._record(group, kind, "outside", place, pointers, wrong)
            left &= ~here
        return reachable

    def _region_at(self, address: int) -> Named:
        """The region of a known address; one without bytes for an address between regions."""
        if self._regions is not None:
            named = self._regions.region_at(address)
            if named is not None:
                return named
            if any(start <= address < end for start, end in self._regions.spans()):
                return "unallocated memory", address, address
        start, end = next(span for span in self._known().ranges if span[0] <= address < span[1])
        return "", start, end

    def _strange(
        self, group: _Group, kind: AccessKind, pointers: Array, strange: Array, size: int
    ) -> Array:
        """Unknown addresses: followed if this process has mapped memory there."""
        rights = "rw" if kind == "write" else "r"
        mapped = strange & mapped_memory(rights).holds(pointers, size)
        self._report.unchecked += int(mapped.sum())
        nowhere = strange & ~mapped
        if nowhere.any():
            place = _Place("?", "", int(pointers[nowhere].min()), 0, size)
            self._record(group, kind, "unmapped", place, pointers, nowhere)
        return mapped

    def _record(
        self,
        group: _Group,
        kind: AccessKind,
        where: Where,
        place: _Place,
        pointers: Array,
        elements: Array,
    ) -> None:
        lanes = elements.reshape(len(elements), -1)
        offending = np.flatnonzero(lanes.any(axis=1))
        # A single lane for a whole group: all programs computed the same pointers.
        shared = len(group.programs) != len(lanes)
        first = int(offending[0])
        offset = (pointers - np.uint64(place.start)).view(np.int64) // place.itemsize
        missed = offset[elements]
        group.found.append(
            Access(
                kernel=self._kernel,
                source=kernel_line(),
                kind=kind,
                where=where,
                buffer=place.buffer,
                region=place.region,
                program=program_at(self._grid, int(group.programs[0 if shared else first])),
                programs=len(group.programs) if shared else len(offending),
                offset=int(offset[first][elements[first]].flat[0]),
                low=int(missed.min()),
                high=int(missed.max()),
                elements=int(elements.sum()) * (len(group.programs) if shared else 1),
                extent=place.nbytes // place.itemsize,
                address=place.start,
            )
        )

    def fetch(self, pointers: Array, reachable: Array, other: Array) -> Array:
        """Values at `pointers` where reachable, else those of `other`."""
        result: Array = interpreter.load(pointers, reachable, other, other.dtype)
        return result

    def put(self, pointers: Array, values: Array, reachable: Array) -> None:
        """Write where reachable; of equal places the last value stays."""
        interpreter.store(np.array(pointers), np.array(values), np.array(reachable))


class _Place:
    """The memory that an access is checked against, as a record names it."""

    __slots__ = ("buffer", "itemsize", "nbytes", "region", "start")

    def __init__(self, buffer: str, region: str, start: int, nbytes: int, itemsize: int) -> None:
        self.buffer = buffer
        self.region = region
        self.start = start
        self.nbytes = nbytes
        self.itemsize = itemsize

    @classmethod
    def of(cls, view: View) -> _Place:
        return cls(view.name, view.region, view.start, view.nbytes, view.itemsize)


def program_at(grid: Grid, number: int) -> Grid:
    """Ids of the program that the interpreter runs as the `number`th one."""
    # The stock interpreter's loops run x outermost and z innermost.
    rest, z = divmod(number, grid[2])
    x, y = divmod(rest, grid[1])
    return x, y, z
