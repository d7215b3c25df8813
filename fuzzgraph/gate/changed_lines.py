"""Puts the line that a change touches before the other lines of a finding.

What a change does shows elsewhere: a length is worked out wrong in one function, and another one
writes by it. So the calls that lead to a finding's lines are looked through as well.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import cached_property
from pathlib import Path

import msgspec

from fuzzgraph.case import Case
from fuzzgraph.finding import EngineLine, Finding, Place
from fuzzgraph.gate.changes import MODULE, Changes, read_source

LinesOf = Callable[[Case, Finding], tuple[EngineLine, ...]]


class ChangedLines:
    """The lines of a tree that a change touches.

    Args:
        package: the package's folder in the tree.
        below: its path below the root of the checkout, with which paths of findings begin.
    """

    def __init__(self, changes: Changes, package: Path, below: str) -> None:
        self._files = {
            f"{below}/{file.path}": _File(package / file.path, file.here) for file in changes.files
        }

    def first_of(self, lines_of: LinesOf) -> LinesOf:
        """What finds the lines of a finding, with the one that the change touches in front."""
        return lambda case, finding: self.first(lines_of(case, finding))

    def first(self, lines: tuple[EngineLine, ...]) -> tuple[EngineLine, ...]:
        """The lines, before them one that is changed: itself one of them, a call that leads to
        one, or the nearest in a function on that way. As they are where the change touches none.
        """
        for line in lines:
            if self._touches(line):
                changed = msgspec.structs.replace(line, does=f"{line.does}; the change touches it")
                return (changed, *(other for other in lines if other is not line))
        for place, line in _ways(lines):
            if self._touches(place):
                does = f"is touched by the change, and leads to {_told(line)}"
                return (_changed(place, place.line, does), *lines)
        for place, line in _ways(lines):
            file = self._files.get(place.path)
            near = file.beside(place.line) if file is not None else None
            if near is not None:
                does = f"is touched by the change, in a function that leads to {_told(line)}"
                return (_changed(place, near, does), *lines)
        return lines

    def _touches(self, place: Place) -> bool:
        file = self._files.get(place.path)
        return file is not None and place.line in file.changed


class _File:
    def __init__(self, path: Path, changed: frozenset[int]) -> None:
        self._path = path
        self.changed = changed

    @cached_property
    def _function_at(self) -> Callable[[int], tuple[str, bool]]:
        return read_source(self._path).at

    def beside(self, line: int) -> int | None:
        """The changed line of the same function that comes nearest before it, else behind it."""
        function, _ = self._function_at(line)
        if function == MODULE:
            return None
        same = [one for one in self.changed if self._function_at(one)[0] == function]
        before = [one for one in same if one <= line]
        return max(before) if before else min(same, default=None)


def _ways(lines: tuple[EngineLine, ...]) -> Iterator[tuple[Place, EngineLine]]:
    """Each line and the calls that lead to it, the nearest of all lines first."""
    ways = [((line, *line.callers), line) for line in lines]
    for depth in range(max((len(way) for way, _ in ways), default=0)):
        yield from ((way[depth], line) for way, line in ways if depth < len(way))


def _changed(place: Place, number: int, does: str) -> EngineLine:
    return EngineLine(
        role="changed", path=place.path, line=number, function=place.function, does=does
    )


def _told(line: EngineLine) -> str:
    return f"{line.short}, which {line.does}"
