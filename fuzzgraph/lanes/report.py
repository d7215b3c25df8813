"""What launches under lanes have shown: accesses outside, races, fallbacks, and how much ran."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from fuzzgraph.accesses import Access, Race

__all__ = ["LaneReport"]

_MOST = 1000
"""Different records kept of one kind; a fuzzed kernel repeats itself."""


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
