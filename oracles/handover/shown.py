"""Finds what a run showed by its path: what is held, tensors and numbers of calls."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from fuzzgraph.handover import Handover, Part
from fuzzgraph.observation import Observation


def held_in(seen: Observation) -> Handover:
    found = [each for each in seen.handovers if each.kind == "held"]
    return found[-1] if found else Handover("", "held")


def calls(handovers: Iterable[Handover]) -> Mapping[str, list[tuple[str, Part]]]:
    """Path -> (method, tensor) of each call that handed it over, in order."""
    found: dict[str, list[tuple[str, Part]]] = {}
    for each in handovers:
        if each.kind == "call":
            for path, part in each.tensors.items():
                found.setdefault(path, []).append((each.to, part))
    return found


def by_leaf(handovers: Iterable[Handover]) -> dict[str, Part]:
    """Last name of a path -> the first tensor that a call handed over under it."""
    return {leaf(path): parts[0][1] for path, parts in calls(handovers).items()}


def scalars(handovers: Iterable[Handover]) -> dict[str, tuple[str, object]]:
    """Path -> (method, plain value) of the last call that handed it over."""
    return {
        path: (each.to, value)
        for each in handovers
        if each.kind == "call"
        for path, value in each.scalars.items()
    }


def leaf(path: str) -> str:
    return path.rpartition(".")[2]


def kinds(handovers: Iterable[Handover]) -> dict[str, tuple[str, set[str]]]:
    """Last name of a path -> (the path as a breach calls it, kinds that calls handed over)."""
    found: dict[str, tuple[str, set[str]]] = {}
    for each in handovers:
        if each.kind == "call":
            for path, kind in each.kinds.items():
                found.setdefault(leaf(path), (f"{each.to}.{path}", set()))[1].add(kind)
    return found
