"""Saves and restores the Python side of an engine: attributes, dicts, lists, sets, NumPy arrays.

Tensors are not copied: `guard` restores their memory. NumPy arrays are, because engines keep
host-side history in them and guarded memory does not hold them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from typing import Any

import numpy as np

from fuzzgraph.memory.regions import is_opaque, slot_names

# Where a walk ends, so that a huge object graph does not slow down every snapshot.
_MAX_NODES = 20_000

# What to do with an object, decided once for each type: the walk visits thousands of objects.
_ATOM, _DICT, _LIST, _SET, _TUPLE, _ARRAY, _OBJECT, _SLOTTED, _FROZEN = range(9)
_kinds: dict[type, int] = {}


class PythonState:
    """Shallow copies of every mutable object that was reachable, each with the object itself."""

    __slots__ = ("arrays", "dicts", "lists", "sets", "slotted")

    def __init__(self) -> None:
        self.dicts: list[tuple[Any, dict[Any, Any]]] = []
        self.lists: list[tuple[Any, list[Any]]] = []
        self.sets: list[tuple[Any, set[Any]]] = []
        self.arrays: list[tuple[Any, Any]] = []
        self.slotted: list[tuple[Any, dict[str, Any]]] = []

    @property
    def copies(self) -> list[object]:
        """Every copy, without the objects themselves."""
        pairs = (*self.dicts, *self.lists, *self.sets, *self.arrays, *self.slotted)
        return [copy for _, copy in pairs]

    def remember_again(self, earlier: PythonState, fresh: list[Any]) -> None:
        """Copy the lists, sets, arrays and slots of an earlier snapshot as they are now.

        Args:
            fresh: what they hold is added here, for the caller to follow.
        """
        for items, _ in earlier.lists:
            copy = list(items)
            self.lists.append((items, copy))
            fresh.extend(copy)
        for members, _ in earlier.sets:
            self.sets.append((members, set(members)))
            fresh.extend(members)
        for array, _ in earlier.arrays:
            self.arrays.append((array, array.copy()))
        for value, _ in earlier.slotted:
            _remember_slots(self, value, fresh)


def _kind_of(kind: type) -> int:
    # Containers first: an engine's own subclass of dict or list is restored as what it is.
    if issubclass(kind, dict):
        return _DICT
    if issubclass(kind, (list, deque)):
        return _LIST
    if issubclass(kind, set):
        return _SET
    if issubclass(kind, tuple):
        return _TUPLE
    if issubclass(kind, np.ndarray):
        return _ARRAY
    if is_opaque(kind):
        return _ATOM
    # A frozen dataclass cannot be bound anew, but what its fields lead to may change.
    parameters = getattr(kind, "__dataclass_params__", None)
    if parameters is not None and parameters.frozen:
        return _FROZEN
    if slot_names(kind):
        return _SLOTTED
    return _OBJECT


def snapshot_attributes(roots: Mapping[str, object]) -> PythonState:
    """Remember the bindings of every plain object, dict, list and set reachable from `roots`."""
    snapshot = PythonState()
    walk_into(snapshot, list(roots.values()), set())
    return snapshot


def walk_into(snapshot: PythonState, queue: list[Any], seen: set[int]) -> None:
    """Remember everything in the queue that is not in `seen`, and all that it leads to."""
    kinds = _kinds
    for value in queue:  # grows while it is walked
        if len(seen) > _MAX_NODES:
            break
        cls = value.__class__
        kind = kinds.get(cls)
        if kind is None:
            kind = kinds[cls] = _kind_of(cls)
        # `id` is safe as identity: the snapshot holds every object it has seen.
        if kind == _ATOM or id(value) in seen:
            continue
        seen.add(id(value))
        _remember(snapshot, kind, value, queue)


def _remember(snapshot: PythonState, kind: int, value: Any, queue: list[Any]) -> None:
    if kind in (_OBJECT, _DICT):
        bindings = value if kind == _DICT else getattr(value, "__dict__", None)
        if bindings is not None:
            saved = dict(bindings)
            snapshot.dicts.append((bindings, saved))
            queue.extend(saved.values())
    elif kind == _LIST:
        items = list(value)
        snapshot.lists.append((value, items))
        queue.extend(items)
    elif kind == _TUPLE:
        queue.extend(value)
    elif kind == _SET:
        snapshot.sets.append((value, set(value)))
    elif kind == _ARRAY:
        snapshot.arrays.append((value, value.copy()))
    elif kind == _FROZEN:
        queue.extend(getattr(value, field) for field in value.__dataclass_fields__)
    else:
        _remember_slots(snapshot, value, queue)


def _remember_slots(snapshot: PythonState, value: Any, queue: list[Any]) -> None:
    slots = {name: getattr(value, name) for name in slot_names(type(value)) if hasattr(value, name)}
    snapshot.slotted.append((value, slots))
    queue.extend(slots.values())
    if hasattr(value, "__dict__"):
        _remember(snapshot, _OBJECT, value, queue)


def restore_attributes(snapshot: PythonState) -> None:
    """Bind everything again as it was; the same objects, in place."""
    # In place, because the engine and its graphs hold these very containers.
    for bindings, saved in snapshot.dicts:
        bindings.clear()
        bindings.update(saved)
    for items, copy in snapshot.lists:
        items.clear()
        items.extend(copy)
    for members, kept in snapshot.sets:
        members.clear()
        members.update(kept)
    for array, content in snapshot.arrays:
        if array.flags.writeable:
            array[...] = content
    for value, slots in snapshot.slotted:
        for name in slot_names(type(value)):
            # By `object`, past an engine's own `__setattr__`, which may refuse or have effects.
            if name in slots:
                object.__setattr__(value, name, slots[name])
            elif hasattr(value, name):
                object.__delattr__(value, name)
