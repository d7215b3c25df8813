"""Lets code deep in a launch ask for the language of lanes, which comes on demand."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

_ASKED: list[Callable[[], None]] = []


@contextmanager
def on_demand(needed: Callable[[], None]) -> Iterator[None]:
    """Inside, `language_needed` calls this."""
    _ASKED.append(needed)
    try:
        yield
    finally:
        _ASKED.pop()


def language_needed() -> None:
    """A kernel's own code is about to run: the language has to be that of lanes."""
    if _ASKED:
        _ASKED[-1]()
