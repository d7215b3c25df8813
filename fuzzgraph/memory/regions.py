"""Regions: which guarded allocation is which, by address, by name and by source line.

Names come from a breadth-first walk over the engine's objects, so a buffer is called what the
engine calls it (`runner.buffers.seq_lens`). All allocations share one storage: matching is by
address range.
"""

from __future__ import annotations

import enum
import sys
import types
import weakref
from bisect import bisect_right
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Literal

import numpy as np
import torch

from fuzzgraph.memory.arena import address_of
from fuzzgraph.memory.side_requests import Side

Segment = Literal["engine", "graph", "scratch"]
"""engine: persistent buffers. graph: intermediates of captured graphs, which share their pool.
scratch: intermediates of an eager run, reused by the next one."""

# Where a walk ends: a large object graph behind a runner must not slow every session down. Buffers
# found later keep the name of the line that allocated them.
_MAX_NODES = 20_000
# Objects of FuzzGraph and of libraries hold no buffer under a name that an engine's author knows.
_HARNESS = ("fuzzgraph.memory", "fuzzgraph.graphs", "fuzzgraph.execution")
_FOREIGN = {"torch", "numpy", "triton", "builtins"}


@dataclass(slots=True, eq=False)
class Region:
    """One guarded allocation: payload between two red zones. Offsets and sizes in bytes."""

    name: str
    segment: Segment
    dtype: torch.dtype
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    offset: int
    """Where the payload starts in the arena."""
    nbytes: int
    zone_before: int
    zone_after: int
    allocated_at: str
    """Innermost source line outside torch and the harness: `file.py:123 in function`."""
    born_empty: bool
    """The engine asked for memory without content (`torch.empty` and the like)."""
    side: Side = ""
    """Host or device, as the engine asked; "" where that is unknown."""
    pinned: bool = False
    """Whether it is memory of the host from which a device copies by itself."""
    touched: bool = False
    """Whether an operation or a kernel launch was seen that may write here."""
    given: weakref.ReferenceType[torch.Tensor] | None = None
    """The tensor that the engine got for it, where it is one of its buffers."""
    start: int = field(init=False)
    """First byte of the red zone before the payload."""
    end: int = field(init=False)
    """First byte behind the red zone after the payload."""

    def __post_init__(self) -> None:
        self.start = self.offset - self.zone_before
        self.end = self.offset + self.nbytes + self.zone_after

    @property
    def elements(self) -> int:
        """Payload length in elements."""
        return self.nbytes // self.dtype.itemsize


_START = attrgetter("start")


def find_region(regions: Sequence[Region], offset: int) -> Region | None:
    """The region whose red zones and payload contain this arena offset; regions ascend."""
    index = bisect_right(regions, offset, key=_START) - 1
    if index < 0 or offset >= regions[index].end:
        return None
    return regions[index]


def is_opaque(kind: type) -> bool:
    """Whether instances of a type hold no engine state worth walking."""
    # Of the standard library, but engines use it as a plain bag of buffers.
    if issubclass(kind, types.SimpleNamespace):
        return False
    if issubclass(kind, (enum.Enum, type, types.ModuleType, types.FunctionType, BaseException)):
        return True
    module = getattr(kind, "__module__", None) or ""
    root = module.partition(".")[0]
    if hasattr(kind, "__struct_fields__"):  # msgspec records: FuzzGraph's frozen configs
        return True
    return root in _FOREIGN or root in sys.stdlib_module_names or module.startswith(_HARNESS)


# Looked up for every object of every walk, so it is found once for each type.
_SLOT_NAMES: dict[type, tuple[str, ...]] = {}


def slot_names(kind: type) -> tuple[str, ...]:
    """Every `__slots__` name of a type and its bases."""
    known = _SLOT_NAMES.get(kind)
    if known is None:
        known = _SLOT_NAMES[kind] = _find_slot_names(kind)
    return known


def _find_slot_names(kind: type) -> tuple[str, ...]:
    names: list[str] = []
    for base in kind.__mro__:
        # `__slots__ = "name"` is allowed for a single slot.
        slots = base.__dict__.get("__slots__", ())
        names.extend((slots,) if isinstance(slots, str) else slots)
    return tuple(name for name in names if name not in ("__dict__", "__weakref__"))


def children(path: str, value: object) -> Iterator[tuple[str, object]]:
    """Path and value of each thing an object holds; nothing for an opaque object."""
    # Attributes are read from `__dict__` and slots only: a property would run the engine's code.
    if isinstance(value, Mapping):
        for key, item in list(value.items()):
            plain = isinstance(key, str) and key.isidentifier()
            yield (f"{path}.{key}" if plain else f"{path}[{key!r}]"), item
    elif isinstance(value, (list, tuple, deque)):
        for index, item in enumerate(value):
            yield f"{path}[{index}]", item
    elif not is_opaque(type(value)):
        for name, item in list(getattr(value, "__dict__", {}).items()):
            yield f"{path}.{name}", item
        for name in slot_names(type(value)):
            if hasattr(value, name):
                yield f"{path}.{name}", getattr(value, name)


def walk_tensors(roots: Mapping[str, object]) -> Iterator[tuple[str, int]]:
    """Path and address of every tensor and array reachable from `roots`, nearest first."""
    # Breadth first, so that a buffer reachable on two paths gets the shorter name.
    queue: deque[tuple[str, object]] = deque(roots.items())
    seen: set[int] = set()
    while queue and len(seen) < _MAX_NODES:
        path, value = queue.popleft()
        if id(value) in seen:
            continue
        seen.add(id(value))
        if isinstance(value, torch.Tensor):
            yield path, address_of(value)
        elif isinstance(value, np.ndarray):
            yield path, value.ctypes.data
        else:
            queue.extend(children(path, value))
