"""Which targets a change concerns, and how much of the budget each gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fuzzgraph.gate.changes import MODULE, Changes, TouchedFile
from fuzzgraph.gate.executed import Executed

LEAST_SECONDS = 20.0
"""Of search for one target; less finds little beyond the corpus."""


@dataclass(frozen=True, slots=True)
class Chosen:
    """One target of a gate."""

    target: str
    touched: tuple[str, ...]
    """Functions of the change that it executes, as FILE:NAME; FILE alone where it imports it."""
    seconds: float


@dataclass(frozen=True, slots=True)
class Choice:
    """All targets that a change concerns."""

    chosen: tuple[Chosen, ...] = ()
    left_out: tuple[str, ...] = ()
    """Concerned, and without a share: the budget is too small for them."""


def choose(
    changes: Changes, executed: Mapping[str, Executed], seconds: float, at_once: int
) -> Choice:
    """Divide a budget among the targets that execute what changed.

    Where it is too small for all, those are taken first that execute a function which no one taken
    before does, then those that execute most of them. A target that only imports a changed file
    comes last.

    Args:
        seconds: of the whole search, by the clock.
        at_once: targets that run at a time.
    """
    concerned = {
        target: touched
        for target, record in executed.items()
        if not record.why and (touched := _touched(changes.files, record))
    }
    order = _in_order(concerned)
    most = max(1, int(seconds * at_once // LEAST_SECONDS))
    taken = order[:most]
    share = seconds * at_once / max(len(taken), at_once)
    return Choice(
        tuple(Chosen(target, _called_first(concerned[target]), share) for target in taken),
        tuple(order[most:]),
    )


def _called_first(touched: set[str]) -> tuple[str, ...]:
    """Functions, then files that are only imported."""
    return tuple(sorted(touched, key=lambda one: (":" not in one, one)))


def _touched(files: Sequence[TouchedFile], record: Executed) -> set[str]:
    found: set[str] = set()
    for file in files:
        ran = set(record.functions.get(file.path, ()))
        found |= {f"{file.path}:{name}" for name in file.functions & ran}
        # A kernel is compiled from its text; a line outside functions runs at import.
        at_import = MODULE in file.functions and file.path in record.files
        if at_import or (file.kernels and ran):
            found.add(file.path)
    return found


def _in_order(concerned: Mapping[str, set[str]]) -> list[str]:
    left = dict(concerned)
    order: list[str] = []
    seen: set[str] = set()
    while left:
        best = max(left, key=lambda target: _worth(left[target], seen))
        seen |= left.pop(best)
        order.append(best)
    return order


def _worth(touched: set[str], seen: set[str]) -> tuple[int, int]:
    called = {one for one in touched if ":" in one}
    return len(called - seen), len(called)
