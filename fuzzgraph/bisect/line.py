"""The line that is bisected: its points, oldest first, and how the engine of each is opened."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass

from fuzzgraph.bisect.records import Over
from fuzzgraph.run.spec import Setup


@dataclass(frozen=True, slots=True)
class Point:
    """One release or one commit."""

    name: str
    """A version, or the full name of a commit."""
    short: str
    """The same for a line of text."""
    subject: str = ""
    """Of the commit."""


@dataclass(frozen=True, slots=True)
class Line:
    """Points of which the first and the last are the two ends."""

    over: Over
    points: tuple[Point, ...]
    """Oldest first, at least two."""
    bad_is_last: bool
    """Whether the finding came in along the line; else it went."""
    setup_at: Callable[[Point], AbstractContextManager[Setup]]
    """What a case is run on at a point, as long as the context lasts."""
    about: str
    """Which points these are, as words that follow their number, e.g. 'releases of sglang'."""
