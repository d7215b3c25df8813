"""Engines under test, by name: the built-in one, and those that outsiders register."""

from __future__ import annotations

from difflib import get_close_matches
from importlib.metadata import entry_points
from typing import TYPE_CHECKING

from fuzzgraph.errors import UsageError
from fuzzgraph.targets import builtin, flashinfer, sglang, vllm
from fuzzgraph.targets.entry import TargetEntry
from fuzzgraph.targets.own import is_own, open_own

if TYPE_CHECKING:
    from fuzzgraph.ports import Target  # needs torch, the names of targets do not

__all__ = ["BUILT_IN", "open_target", "target_names", "unknown_target"]

GROUP = "fuzzgraph.targets"


BUILT_IN: tuple[TargetEntry, ...] = (
    *builtin.TARGETS, *sglang.TARGETS, *vllm.TARGETS, *flashinfer.TARGETS,
)  # fmt: skip
"""The targets that come with FuzzGraph; each engine's package lists its own."""


def target_names() -> tuple[str, ...]:
    """Names that `open_target` knows, built-in ones first."""
    built_in = [row.name for row in BUILT_IN]
    return (*built_in, *sorted({entry.name for entry in entry_points(group=GROUP)} - {*built_in}))


def open_target(name: str) -> Target:
    """The target called `name`, or the one that module:factory makes.

    Raises:
        UsageError: no such target.
        AdapterUnavailable: its engine is not installed.
    """
    if is_own(name):
        return open_own(name)
    for row in BUILT_IN:
        if row.name == name:
            return row.open()
    for entry in entry_points(group=GROUP):
        if entry.name == name:
            opened: Target = entry.load()()
            return opened
    raise unknown_target(name)


def unknown_target(name: str) -> UsageError:
    """What to raise for a name that no target has: it gives names that are like it."""
    # Most names begin alike, so that the usual 0.6 would offer any target of the same engine.
    close = get_close_matches(name, target_names(), n=3, cutoff=0.75)
    hint = f"Did you mean {' or '.join(map(repr, close))}?" if close else "The default is builtin."
    return UsageError(
        f"target={name!r} is unknown. {hint} 'fuzzgraph targets' lists all of them. Name one of "
        f"your own as module:factory, or register it by an entry point of group {GROUP!r}."
    )
