"""What launches under lanes have shown: accesses outside, races, fallbacks, and how much ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import Literal

__all__ = ["Access", "AccessKind", "LaneReport", "Race", "Where"]

AccessKind = Literal["read", "write"]
Where = Literal["outside", "between", "unmapped", "unwritten"]
"""outside: before or behind what was passed. between: inside its extent, in a gap that the strides
of a view leave. unmapped: outside, and in no memory that is known: nothing was read or written.
unwritten: inside, but nobody wrote it (reported on request)."""

_MOST = 1000
"""Different records kept of one kind; a fuzzed kernel repeats itself."""


@dataclass(frozen=True, slots=True)
class Access:
    """Loads or stores of one source line that missed the memory they belong to."""

    kernel: str
    source: str
    """Line of the kernel, or of a device function that it calls: `file.py:123`."""
    kind: AccessKind
    where: Where
    buffer: str
    """Argument from which the pointer was derived; "?" if it was loaded from memory."""
    region: str
    """What the caller's memory calls the place; "" where nobody named it."""
    program: tuple[int, int, int]
    """Ids of the first program that did it."""
    programs: int
    """Programs that did it, at most; loops and launches add up."""
    offset: int
    """Elements from the start of the view to the first offending element of that program."""
    low: int
    high: int
    """Lowest and highest offending offset."""
    elements: int
    """Offending elements; loops and launches add up."""
    extent: int
    """Elements from the first to the last one that may be accessed, gaps included."""

    def __str__(self) -> str:
        place = f" ({self.region})" if self.region and self.region != self.buffer else ""
        return (
            f"{self.kernel} at {self.source}, program {self.program}: {self.kind} {self.where}"
            f" {self.buffer}{place} at {self.offset:+d} of {self.extent} elements"
            f" ({self.elements} in all, {self.low:+d} to {self.high:+d})"
        )


@dataclass(frozen=True, slots=True)
class Race:
    """Two programs of one launch touched one place, and at least one wrote it."""

    kernel: str
    source: str
    """Line that wrote."""
    other_source: str
    """Line of the other access."""
    kind: Literal["write and write", "read and write"]
    buffer: str
    region: str
    programs: tuple[tuple[int, int, int], tuple[int, int, int]]
    offset: int
    """Elements from the start of the view to the first such place."""
    elements: int
    """Such places."""
    same_value: bool = False
    """All programs wrote what was there in the end: no order changes the result."""

    def __str__(self) -> str:
        place = f" ({self.region})" if self.region and self.region != self.buffer else ""
        first, second = self.programs
        return (
            f"{self.kernel}: programs {first} and {second} {self.kind} {self.buffer}{place} at"
            f" {self.offset:+d} ({self.elements} elements; {self.source}, {self.other_source})"
        )


@dataclass(slots=True)
class LaneReport:
    """What all launches under one `lanes()` have shown so far."""

    launches: int = 0
    """Launches, fallbacks included."""
    programs: int = 0
    runs: int = 0
    """Vectorised runs: one for each chunk of lanes, and two or more for lanes that diverged."""
    splits: int = 0
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kernel, reason) -> launches that the stock interpreter ran instead."""
    unchecked: int = 0
    """Accesses through pointers that were loaded from memory, to places that nobody named."""
    refused: str = ""
    """Why every launch runs in the stock interpreter; "" where the lanes are in use."""
    accesses: list[Access] = field(default_factory=list)
    races: list[Race] = field(default_factory=list)

    def take_accesses(self) -> list[Access]:
        """The accesses found since the last call."""
        taken, self.accesses = self.accesses, []
        return taken

    def take_races(self) -> list[Race]:
        """The races found since the last call."""
        taken, self.races = self.races, []
        return taken

    def add_access(self, new: Access) -> None:
        """Keep a record, one for each line, kind and buffer."""
        for index, old in enumerate(self.accesses):
            if _same_place(old, new):
                self.accesses[index] = replace(
                    old,
                    programs=old.programs + new.programs,
                    elements=old.elements + new.elements,
                    low=min(old.low, new.low),
                    high=max(old.high, new.high),
                )
                return
        if len(self.accesses) < _MOST:
            self.accesses.append(new)

    def add_race(self, new: Race) -> None:
        """Keep a record, one for each pair of lines and buffer."""
        key = (new.kernel, new.source, new.other_source, new.buffer, new.region)
        for old in self.races:
            if (old.kernel, old.source, old.other_source, old.buffer, old.region) == key:
                return
        if len(self.races) < _MOST:
            self.races.append(new)

    def lines(self) -> list[str]:
        """The report as text, most telling first; empty where there is nothing to say."""
        found = [str(access) for access in self.accesses] + [str(race) for race in self.races]
        if self.refused:
            found.append(self.refused)
        for (kernel, reason), count in sorted(self.fallbacks.items()):
            found.append(f"{kernel}: {count} launches by the stock interpreter ({reason})")
        if self.unchecked:
            found.append(f"{self.unchecked} accesses through loaded pointers could not be checked")
        return found


def _same_place(one: Access, two: Access) -> bool:
    return (one.kernel, one.source, one.kind, one.where, one.buffer, one.region, one.extent) == (
        two.kernel, two.source, two.kind, two.where, two.buffer, two.region, two.extent
    )  # fmt: skip
