"""Finds what a run showed by its path: what is held, tensors and numbers of calls.

Several rules ask the same of a run, and of a capture each step asks again: the last answers are
kept, by the identity of what was handed over. Nobody changes that once its run is over.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import lru_cache

from fuzzgraph.handover import Handover, Part
from fuzzgraph.observation import Observation

_kept = lru_cache(maxsize=32)
"""A step has three runs, and a session a few graphs."""


def watches(seen: Observation) -> list[int]:
    """Numbers of the watches that took something down; the launches of kernels are of the first."""
    return sorted({each.watch for each in seen.handovers})


def of_watch(seen: Observation, watch: int) -> Observation:
    """What one watch took down in a run."""
    now, then = seen.handovers, seen.handed_at_capture
    return replace(seen, handovers=_of_watch(now, watch), handed_at_capture=_of_watch(then, watch))


def _of_watch(handovers: tuple[Handover, ...], watch: int) -> tuple[Handover, ...]:
    found = tuple(each for each in handovers if each.watch == watch)
    return handovers if len(found) == len(handovers) else found


@_kept
def plans(handovers: tuple[Handover, ...]) -> frozenset[int]:
    """Where the plans lie by which the kernels of a run shared out their work."""
    found = (each.tensors.get(name) for each in handovers for name in each.plans)
    return frozenset(part.address for part in found if part is not None and part.address)


def held_in(seen: Observation) -> Handover:
    found = [each for each in seen.handovers if each.kind == "held"]
    return found[-1] if found else Handover("", "held")


@_kept
def calls(handovers: tuple[Handover, ...]) -> Mapping[str, list[tuple[str, Part]]]:
    """Path -> (method, tensor) of each call that handed it over, in order."""
    found: dict[str, list[tuple[str, Part]]] = {}
    for each in handovers:
        if each.kind == "call":
            for path, part in each.tensors.items():
                found.setdefault(path, []).append((each.to, part))
    return found


@_kept
def by_leaf(handovers: tuple[Handover, ...]) -> Mapping[str, Part]:
    """Last name of a path -> the first tensor that a call handed over under it."""
    return {leaf(path): parts[0][1] for path, parts in calls(handovers).items()}


@_kept
def scalars(handovers: tuple[Handover, ...]) -> Mapping[str, tuple[str, object]]:
    """Path -> (method, plain value) of the last call that handed it over."""
    return {
        path: (each.to, value)
        for each in handovers
        if each.kind == "call"
        for path, value in each.scalars.items()
    }


@_kept
def unread_in(handovers: tuple[Handover, ...]) -> frozenset[str]:
    """Names that calls handed over, and that the backend did not read."""
    return frozenset(f"{each.to}.{path}" for each in handovers for path in each.unread)


def leaf(path: str) -> str:
    return path.rpartition(".")[2]


@_kept
def kinds(handovers: tuple[Handover, ...]) -> Mapping[str, tuple[str, set[str]]]:
    """Last name of a path -> (the path as a breach calls it, kinds that calls handed over)."""
    found: dict[str, tuple[str, set[str]]] = {}
    for each in handovers:
        if each.kind == "call":
            for path, kind in each.kinds.items():
                found.setdefault(leaf(path), (f"{each.to}.{path}", set()))[1].add(kind)
    return found
