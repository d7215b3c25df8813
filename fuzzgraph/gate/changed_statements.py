"""Which of the changed statements the cases of a gate have executed, in the tree and in its base.

Nothing found in statements that no case enters says nothing about the change.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from fuzzgraph.gate.changes import Changes


class ChangedStatements:
    """Those that a change adds or replaces, and those that it takes away or replaces.

    Args:
        head, base: folders of the package in the tree and in its base.
    """

    def __init__(self, changes: Changes, head: Path, base: Path) -> None:
        self.head = OneSide(head, {file.path: file.added for file in changes.files})
        self.base = OneSide(base, {file.path: file.removed for file in changes.files})
        self.changes = changes
        self._kernels = tuple(file.path for file in changes.files if file.kernels)

    def told(self) -> dict[str, Any]:
        """The fields of a gate's summary that are about them."""
        return {
            "never_ran": self.head.never_ran(),
            "never_ran_on_base": self.base.never_ran(),
            "entered": tuple(sorted(self.head.entered() | self.base.entered())),
            "statements": self.head.count + self.base.count,
            "kernels": self._kernels,
        }


class OneSide:
    """The changed statements of one tree.

    Args:
        statements: file below the folder -> their first lines.
    """

    def __init__(self, folder: Path, statements: Mapping[str, tuple[int, ...]]) -> None:
        self._statements = {name: lines for name, lines in statements.items() if lines}
        self._folder = folder
        self._reached: dict[str, set[int]] = {name: set() for name in self._statements}
        self.watched = {str(folder / name): lines for name, lines in self._statements.items()}
        """What to watch in a process that runs this tree."""

    @property
    def count(self) -> int:
        return sum(map(len, self._statements.values()))

    def note(self, reached: Mapping[str, Collection[int]]) -> None:
        """Enter what one process has executed."""
        for name, lines in self._reached.items():
            lines.update(reached.get(str(self._folder / name), ()))

    def entered(self) -> set[str]:
        """Files of which a process has executed some."""
        return {name for name, lines in self._reached.items() if lines}

    def never_ran(self) -> dict[str, tuple[int, ...]]:
        """File -> first lines of those that no process has executed."""
        left = {
            name: tuple(line for line in lines if line not in self._reached[name])
            for name, lines in self._statements.items()
        }
        return {name: lines for name, lines in left.items() if lines}
