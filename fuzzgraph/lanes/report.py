"""Collects what launches under lanes showed: stray accesses, races, fallbacks, and counts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from fuzzgraph.accesses import Access, Misuse, Race

# Different records kept of one kind, so that a kernel that misses everywhere fills no memory.
_MOST = 1000


@dataclass(slots=True)
class LaneReport:
    """The records and counts of all launches under one `lanes()` so far."""

    launches: int = 0
    """Launches of interpreted kernels, fallbacks and unchecked ones included."""
    unchecked_launches: Counter[str] = field(default_factory=Counter)
    """Why launches were left to the stock interpreter unchecked -> how many."""
    compiled: Counter[str] = field(default_factory=Counter)
    """Kernel -> launches of its compiled form, which are not checked."""
    programs: int = 0
    runs: int = 0
    """Vectorised runs: one for each chunk of lanes, and two or more for lanes that diverged."""
    played: int = 0
    """Those of them that were played back from a trace."""
    splits: int = 0
    fallbacks: Counter[tuple[str, str]] = field(default_factory=Counter)
    """(kernel, reason) -> launches that the stock interpreter ran instead."""
    unchecked: int = 0
    """Accesses through loaded pointers to memory that no region or argument covers."""
    refused: str = ""
    """Why every launch would run in the stock interpreter; "" if the lanes are in use."""
    accesses: list[Access] = field(default_factory=list)
    races: list[Race] = field(default_factory=list)
    misuses: list[Misuse] = field(default_factory=list)

    def take_accesses(self) -> list[Access]:
        """The accesses found since the last call."""
        taken, self.accesses = self.accesses, []
        return taken

    def take_races(self) -> list[Race]:
        """The races found since the last call."""
        taken, self.races = self.races, []
        return taken

    def take_misuses(self) -> list[Misuse]:
        """The misuses found since the last call."""
        taken, self.misuses = self.misuses, []
        return taken

    def add_misuse(self, new: Misuse) -> None:
        """Add a record, unless there is one of the same kernel, argument and rule."""
        key = (new.kernel, new.argument, new.rule)
        if key not in [(old.kernel, old.argument, old.rule) for old in self.misuses]:
            self.misuses.append(new)

    def add_access(self, new: Access) -> None:
        """Add a record; records of one line, kind and buffer become one."""
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
        """Add a record, unless there is one of the same lines and buffer."""
        key = (new.kernel, new.source, new.other_source, new.buffer, new.region)
        for old in self.races:
            if (old.kernel, old.source, old.other_source, old.buffer, old.region) == key:
                return
        if len(self.races) < _MOST:
            self.races.append(new)

    def count_compiled(self, kernel: str) -> None:
        """Count a launch of a compiled kernel."""
        if kernel in self.compiled or len(self.compiled) < _MOST:
            self.compiled[kernel] += 1

    def compiled_line(self) -> str:
        """How many compiled launches there were, of what, and the way to have them checked."""
        names = sorted(self.compiled)
        shown = ", ".join(names[:4]) + (" and more" if len(names) > 4 else "")
        return (
            f"{self.compiled.total()} launches of compiled kernels were not checked ({shown})."
            " Set TRITON_INTERPRET=1 before triton is imported."
        )

    def lines(self) -> list[str]:
        """The report as text, most telling first; empty if all launches were checked and clean."""
        found = [str(access) for access in self.accesses] + [str(race) for race in self.races]
        found += self._unseen()
        for (kernel, reason), count in sorted(self.fallbacks.items()):
            found.append(f"{kernel}: {count} launches by the stock interpreter ({reason})")
        if self.unchecked:
            found.append(f"{self.unchecked} accesses through loaded pointers could not be checked")
        return found

    def _unseen(self) -> Iterator[str]:
        """What was not checked, so that no record of it means nothing."""
        if self.refused:
            yield f"lanes: {self.refused} Until then accesses and races of kernels are not checked."
        elif unchecked := self.unchecked_launches:
            for reason, count in unchecked.items():
                yield f"{count} launches were not checked: {reason}"
        if self.compiled:
            yield self.compiled_line()
        elif not self.launches:
            yield "no kernel was launched, so nothing was checked"


def _same_place(one: Access, two: Access) -> bool:
    return (one.kernel, one.source, one.kind, one.where, one.buffer, one.region, one.extent) == (
        two.kernel, two.source, two.kind, two.where, two.buffer, two.region, two.extent
    )  # fmt: skip
