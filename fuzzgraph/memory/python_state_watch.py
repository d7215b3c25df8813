"""Takes cheap snapshots of the same Python objects: a session takes two in each step.

The containers are found once. A snapshot is then the flat list of the values they hold. Values are
compared by identity, and only those that changed are followed, so that objects which the engine has
made since are saved as well.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import chain
from operator import attrgetter, is_
from typing import Any

import torch

from fuzzgraph.memory.python_state import PythonState, restore_attributes, walk_into
from fuzzgraph.memory.regions import slot_names


@dataclass(frozen=True, slots=True)
class Bindings:
    """The values of all watched objects at one moment."""

    values: list[Any]
    """Of every watched dict and slotted object, in the order of `PythonStateWatch`."""
    rest: PythonState
    """Lists, sets and arrays; everything that is new since the watch began; and all dicts if a key
    was added or removed."""

    @property
    def containers(self) -> list[object]:
        """The lists and dicts in which this keeps what was bound."""
        return [self.values, *self.rest.copies]


class PythonStateWatch:
    """Takes and restores snapshots of all that is reachable from `roots`."""

    def __init__(self, roots: Mapping[str, object]) -> None:
        self._known: set[int] = set()
        self._rest = PythonState()
        walk_into(self._rest, list(roots.values()), self._known)
        self._dicts = [bindings for bindings, _ in self._rest.dicts]
        # All keys of all dicts in one list: comparing it tells whether a key was added or removed.
        self._keys = list(chain.from_iterable(self._dicts))
        self._setters: list[Callable[[Any], Any]] = [
            partial(bindings.__setitem__, key) for bindings in self._dicts for key in bindings
        ]
        # Dicts are read as flat values from now on. `_rest` keeps what has to be copied each time.
        self._rest.dicts = []
        self._slots = self._take_full_slots()
        self._values = self._read()
        self.first = Bindings(self._values, self._rest)

    def bound_tensors(self) -> Iterator[tuple[dict[Any, Any], Any, torch.Tensor]]:
        """Each attribute or entry that is a tensor now: where it is bound, its name, the tensor."""
        for bindings in self._dicts:
            for name, value in bindings.items():
                # A weak proxy passes for a tensor, and holds none.
                if isinstance(value, torch.Tensor) and type(value) not in weakref.ProxyTypes:
                    yield bindings, name, value

    def _take_full_slots(self) -> list[Callable[[], tuple[Any, ...]]]:
        """Readers of the slotted objects whose slots are all bound; the others stay in `rest`."""
        readers: list[Callable[[], tuple[Any, ...]]] = []
        others = []
        for value, slots in self._rest.slotted:
            # `attrgetter` fails on an unbound slot, and of a single name it gives no tuple.
            if len(slots) < max(2, len(slot_names(type(value)))):
                others.append((value, slots))
                continue
            readers.append(partial(attrgetter(*slots), value))
            self._setters += [partial(object.__setattr__, value, name) for name in slots]
        self._rest.slotted = others
        return readers

    def _read(self) -> list[Any]:
        values = list(chain.from_iterable([bindings.values() for bindings in self._dicts]))
        for read in self._slots:
            values.extend(read())
        return values

    def _same_keys(self) -> bool:
        # The sum first: it is much cheaper than the comparison, and most changes show in it.
        if sum(map(len, self._dicts)) != len(self._keys):
            return False
        return all(map(is_, chain.from_iterable(self._dicts), self._keys))

    def snapshot(self) -> Bindings:
        """The present bindings."""
        values = self._read()
        rest = PythonState()
        if self._same_keys():
            fresh = [values[at] for at in _unequal(values, self._values)]
        else:
            # Flat values no longer line up with `_setters`: copy the dicts as a whole.
            rest.dicts = [(bindings, dict(bindings)) for bindings in self._dicts]
            fresh = list(values)
        rest.remember_again(self._rest, fresh)
        if fresh:
            walk_into(rest, fresh, set(self._known))
        return Bindings(values, rest)

    def restore(self, moment: Bindings) -> None:
        """Bind everything again as it was; the same objects, in place."""
        if not self._same_keys():
            self._clear_new_keys()
        # A snapshot with other keys has other values. `rest` then holds its dicts as a whole.
        if len(moment.values) == len(self._setters):
            for at in _unequal(self._read(), moment.values):
                self._setters[at](moment.values[at])
        restore_attributes(moment.rest)

    def _clear_new_keys(self) -> None:
        """Bring back the keys of the first snapshot, in their order."""
        for bindings in self._dicts:
            bindings.clear()
        for set_value, value in zip(self._setters, self._values, strict=True):
            set_value(value)


def _unequal(one: list[Any], other: list[Any]) -> Iterator[int]:
    """Places where two lists of one length hold different objects."""
    # Without a Python loop over all values: few differ, and a session has thousands.
    same = list(map(is_, one, other))
    at = -1
    try:
        while True:
            at = same.index(False, at + 1)
            yield at
    except ValueError:
        return
