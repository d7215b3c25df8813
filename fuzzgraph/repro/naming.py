"""Python names for the engine's buffers and for what its operations make."""

from __future__ import annotations

import builtins
import keyword
import re
from collections import Counter
from collections.abc import Iterable, Mapping

from fuzzgraph.memory import Region
from fuzzgraph.repro.embedding import EMBEDDABLE

_OWN = {"torch", "sys", "main", "tensor", "os", "tl", "triton", "HEADLINE", "BUFFER"}
TAKEN = _OWN | EMBEDDABLE.keys()
"""Names that a script uses itself."""


def identifier(text: str) -> str:
    """Text made fit for a Python name.

    >>> identifier("kv.indices[0]"), identifier("3d"), identifier("class")
    ('kv_indices_0', '_3d', 'class_')
    """
    name = re.sub(r"\W+", "_", text).strip("_") or "unnamed"
    if name[0].isdigit():
        name = f"_{name}"
    if keyword.iskeyword(name) or hasattr(builtins, name) or name in TAKEN:
        name += "_"
    return name


class Names:
    """Hands out names, none twice."""

    def __init__(self, taken: Iterable[str] = ()) -> None:
        self._taken = set(taken)

    def fresh(self, wish: str) -> str:
        """`wish`, or the first of `wish_2`, `wish_3`, ... that is free."""
        name, number = identifier(wish), 1
        while name in self._taken:
            number += 1
            name = f"{identifier(wish)}_{number}"
        self._taken.add(name)
        return name


def region_names(regions: Iterable[Region], declared: Mapping[int, str]) -> dict[int, str]:
    """Region id -> name: the declared one, else the shortest tail of its path that is unique.

    Args:
        regions: all that need a name.
        declared: region id -> name under which the engine declares the buffer.
    """
    every = list(regions)
    names = Names()
    found: dict[int, str] = {}
    paths = {id(region): _parts(declared[id(region)]) for region in every if id(region) in declared}
    for key in paths:
        found[key] = names.fresh(_shortest(paths, key))
    paths |= {id(region): _parts(region.name) for region in every if id(region) not in declared}
    for region in every:
        if id(region) not in found:
            found[id(region)] = names.fresh(_shortest(paths, id(region)))
    return found


def _parts(path: str) -> list[str]:
    if " of " in path:  # a region without a path is described by form and source line
        where = path.partition(" of ")[2]
        return [where.rpartition(" in ")[2] or "intermediate"]
    key = re.match(r"(.*)\[\('(\w+)',", path)  # a dict keyed by (name, ...)
    if key:
        return [*_parts(key[1]), key[2]]
    return [part.strip("_") for part in re.split(r"[.\[\]']+", path) if part.strip("_")]


def _shortest(paths: dict[int, list[str]], which: int) -> str:
    mine = paths[which]
    for length in range(1, len(mine) + 1):
        tail = mine[-length:]
        if tail[0].isdigit() and length < len(mine):
            continue
        rivals = Counter(tuple(path[-length:]) for path in paths.values())
        if rivals[tuple(tail)] == 1:
            return "_".join(tail)
    return "_".join(mine[-3:])
