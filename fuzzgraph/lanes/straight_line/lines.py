"""The text of a function that is being written, and the values that its names stand for."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Run = Callable[[list[Any], Any], None]
"""Carries out the steps of a path, given playback's list and the builder."""


class Lines:
    """The lines of one function, in order."""

    def __init__(self) -> None:
        self._lines: list[str] = []
        self._values: dict[str, Any] = {}
        self._names: dict[int, str] = {}

    def add(self, line: str) -> None:
        """Add a line of the function's body."""
        self._lines.append(line)

    def name(self, value: Any) -> str:
        """A global name for a value that is the same in every run."""
        known = self._names.get(id(value))
        if known is None:
            known = self._names[id(value)] = f"c{len(self._names)}"
            self._values[known] = value  # which keeps the id safe
        return known

    def function(self) -> Run:
        """The function, compiled."""
        text = "\n    ".join(["def run(values, builder):", "memory = builder.memory", *self._lines])
        # The text has our own words and counters alone: what an engine gave stands behind names.
        exec(compile(text, "<path of a trace>", "exec"), self._values)
        made: Run = self._values["run"]
        return made
