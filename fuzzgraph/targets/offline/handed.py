"""Takes down what a runner hands to its backend, and what the backend holds for its kernels.

Every public method of the backend is wrapped: no list of names says which ones count. A call is
taken down where it hands over tensors, alone or in records (dataclasses, such as a forward batch).
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Hashable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

import torch

from fuzzgraph.handover import (
    Handover,
    Held,
    Part,
    as_it_is,
    held_by,
    held_handover,
    is_record,
    kind_of,
    leaves_of,
    numbers_part,
    part_of,
    records_in,
    root_of,
    scalar_of,
)
from fuzzgraph.ports import GraphEngine
from fuzzgraph.relays import relay
from fuzzgraph.targets.offline.binding import Binding

__all__ = ["BackendWatch"]


@dataclass(slots=True)
class _AtCapture:
    """What one graph was captured with; tensors as aliases that the engine cannot rebind."""

    calls: tuple[Handover, ...]
    held: Held
    inputs: dict[str, torch.Tensor]
    """Path -> integers of the batch that the graph was captured with."""


@dataclass(slots=True)
class _Call:
    """One call of the backend while it is being taken down."""

    taken: Handover
    aliases: dict[str, torch.Tensor] = field(default_factory=dict)


class BackendWatch:
    """Takes down the calls of one backend, and its metadata, for every graph and step.

    Args:
        backend: the engine's own; its public methods are wrapped on the instance.
        graphs: captures the graphs that the backend works in.
        capturing: whether a graph is being captured or warmed up now, when no value may be read.
    """

    def __init__(self, backend: Any, graphs: GraphEngine, capturing: Callable[[], bool]) -> None:
        self._backend = backend
        self._graphs = graphs
        self._capturing = capturing
        self._calls: list[_Call] = []
        self._depth = 0
        self._before: dict[str, object] | None = None
        self._name = _engine_class(backend).__name__
        self._captured: dict[Hashable, _AtCapture] = {}
        self._prepared: dict[str, Part] = {}
        self._records: list[object] = []
        for name in _public_methods(backend):
            setattr(backend, name, self._watched(name, getattr(backend, name)))

    def captured(self, key: Hashable) -> None:
        """Keep what graph `key`, captured just now, was captured with."""
        inputs: dict[str, torch.Tensor] = {}
        # The first call's, from last to first: later ones come from within the forward, which may
        # have put its own intermediates into the batch.
        for call in reversed(self._calls):
            inputs.update(_in_records(call.aliases))
        held = held_by(_records(self._backend))
        with as_it_is():
            held.tensors = {path: tensor.detach() for path, tensor in held.tensors.items()}
        calls = tuple(call.taken for call in self._calls)
        self._captured[key] = _AtCapture(calls, held, inputs)
        if self._graphs.graphs:
            newest: Any = self._graphs.graphs[-1]
            newest.before_replay = functools.partial(self._about_to_replay, key)
        self._calls.clear()
        self._records.clear()
        self._before = None

    def _about_to_replay(self, key: Hashable) -> None:
        """Keep what graph `key` reads of the batch that it was captured with."""
        if not self._prepared:  # else it is not the first of several graphs of a step
            with as_it_is():
                inputs = self._captured[key].inputs
                self._prepared = {path: part_of(each) for path, each in inputs.items()}

    def take(self, key: Hashable | None) -> tuple[Handover, ...]:
        """What was handed over since the last call, and what is held now.

        Args:
            key: of the graph that was replayed; None after an eager run.
        """
        calls = tuple(call.taken for call in self._calls)
        self._calls.clear()
        self._records.clear()
        records = _records(self._backend)
        now, graph = held_by(records), None if key is None else self._captured.get(key)
        # What a preparation leaves alone may be of a step before; without a call nothing is new.
        before = {**records, **now.tensors} if self._before is None else self._before
        self._before = None
        changed = [path for path, each in now.tensors.items() if before.get(path) is not each]
        if graph is None:
            fresh = {root for root, record in records.items() if before.get(root) is not record}
            held = held_handover(self._name, now.only(fresh | set(map(root_of, changed))))
        else:
            held = held_handover(self._name, now, graph.held)
            # A forward may write its inputs, as drafts do: they count as they were before it.
            held.tensors |= self._prepared
        self._prepared = {}
        with as_it_is():
            held.rebound = {path: now.tensors[path].data_ptr() for path in changed}
        # A record without a tensor has nothing that a kernel could miss.
        held_then = {root_of(path) for path in before if "." in path}
        held.dropped = tuple(root for root in before if root in held_then - records.keys())
        return (*calls, held)

    def at_capture(self, key: Hashable) -> tuple[Handover, ...]:
        """The calls by which graph `key` was captured; without values."""
        graph = self._captured.get(key)
        return () if graph is None else graph.calls

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        binding = _binding(_of_the_engine(self._backend, name) or method)
        to = f"{self._name}.{name}"

        @functools.wraps(method)
        @relay
        def watched(*args: Any, **kwargs: Any) -> Any:
            # What a backend hands on to itself is its own business.
            if not self._depth and (args or kwargs):
                self._take(to, _named(binding, args, kwargs))
            self._depth += 1
            try:
                return method(*args, **kwargs)
            finally:
                self._depth -= 1

        return watched

    def _take(self, to: str, arguments: dict[str, Any]) -> None:
        if self._before is None and not self._capturing():
            records = _records(self._backend)
            self._before = {**records, **held_by(records).tensors}
        number = sum(call.taken.to == to for call in self._calls)
        taken = Handover(to, "call", number)
        call = _Call(taken)
        readable = not self._capturing()
        # A batch goes through several methods; it is taken down where it is handed over first.
        fresh = {name: each for name, each in arguments.items() if self._is_fresh(each)}
        with as_it_is():
            for path, value in leaves_of(fresh):
                taken.kinds[path] = kind_of(value)
                if value is None:
                    continue
                if isinstance(value, torch.Tensor):
                    taken.tensors[path] = part_of(value, values=readable)
                    if not readable:
                        call.aliases[path] = value.detach()
                elif isinstance(value, type):
                    taken.types[path] = value.__name__
                elif _is_numbers(value):
                    taken.tensors[path] = numbers_part(value)
                elif (scalar := scalar_of(value)) is not None:
                    taken.scalars[path] = scalar
        if taken.tensors:
            self._calls.append(call)

    def _is_fresh(self, argument: object) -> bool:
        """Whether a record was not handed over before in this run."""
        known = any(each is argument for each in self._records)
        if not known and is_record(argument):
            self._records.append(argument)
        return not known


def _is_numbers(value: object) -> TypeGuard[Sequence[int]]:
    """Whether it is a list of whole numbers, the host's copy of what the device has."""
    return isinstance(value, (list, tuple)) and bool(value) and set(map(type, value)) == {int}


def _engine_class(backend: Any) -> type:
    """Its class, or the one that a stand-in of ours derives from."""
    kinds = type(backend).__mro__
    return next((kind for kind in kinds if not kind.__module__.startswith("fuzzgraph.")), kinds[0])


def _of_the_engine(backend: Any, name: str) -> Callable[..., Any] | None:
    """The engine's own method, which names the arguments of a stand-in that overrides it."""
    owner = next(
        (
            kind
            for kind in type(backend).__mro__
            if name in vars(kind) and not kind.__module__.startswith("fuzzgraph.")
        ),
        None,
    )
    method = None if owner is None else vars(owner)[name]
    return method.__get__(backend) if inspect.isfunction(method) else None


def _public_methods(backend: Any) -> Iterator[str]:
    kind = type(backend)
    for name in dir(kind):
        # Properties are not called; a static method or one of the class is not this backend's.
        if not name.startswith("_") and inspect.isfunction(inspect.getattr_static(kind, name)):
            yield name


def _records(backend: Any) -> dict[str, object]:
    return records_in(vars(backend))


def _in_records(aliases: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that came in a record, which the engine keeps and reads while it captures.

    Integers only: what selects memory or counts. Queries and keys are the forward's own.
    """
    return {
        path: tensor
        for path, tensor in aliases.items()
        if "." in path and not tensor.is_floating_point()
    }


def _binding(method: Callable[..., Any]) -> Binding | None:
    try:
        return Binding(inspect.signature(method))
    except (TypeError, ValueError):
        return None


def _named(
    binding: Binding | None, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Arguments by name; by number where the method takes no such call, which it says itself."""
    if binding is None:
        return _numbered(args, kwargs)
    try:
        return binding.named(args, kwargs)
    except TypeError:
        return _numbered(args, kwargs)


def _numbered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**{f"[{at}]": value for at, value in enumerate(args)}, **kwargs}
