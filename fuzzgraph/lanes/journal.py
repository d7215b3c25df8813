"""Records the stores of a run of lanes, so that all of them can be undone."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy.typing as npt

Array = npt.NDArray[Any]


class Journal:
    """Undo log of stores; `mark` names a moment, `rollback` returns to it."""

    def __init__(self) -> None:
        self._entries: list[Callable[[], None]] = []

    def mark(self) -> int:
        return len(self._entries)

    def save(self, memory: Array, index: Array) -> None:
        """Remember `memory[index]`, which is about to be overwritten."""
        # Indexing by an array copies. Where an index occurs twice, both copies are the old value.
        old = memory[index]

        def put_back() -> None:
            memory[index] = old

        self._entries.append(put_back)

    def add(self, put_back: Callable[[], None]) -> None:
        """Remember any other change by a function that undoes it."""
        self._entries.append(put_back)

    def rollback(self, mark: int = 0) -> None:
        """Undo everything since `mark`, the latest first."""
        while len(self._entries) > mark:
            self._entries.pop()()


class NoJournal(Journal):
    """For runs that are never undone."""

    def save(self, memory: Array, index: Array) -> None:
        """Forget it."""

    def add(self, put_back: Callable[[], None]) -> None:
        """Forget it."""
