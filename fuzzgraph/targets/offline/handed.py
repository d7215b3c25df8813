"""Takes down what a runner hands to its backend, and what the backend holds for its kernels.

Every public method of the backend is wrapped: no list of names says which ones count. A call is
taken down where it hands over tensors, alone or in records (dataclasses, such as a forward batch).
What a method returns is held as well if it is a record: some backends keep their metadata in an
attribute, others give it to their runner.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable
from contextlib import nullcontext
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

import torch

from fuzzgraph.handover import (
    Handover,
    Held,
    Part,
    as_it_is,
    held_by,
    held_handover,
    is_numbers,
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
from fuzzgraph.targets.offline.methods import Arguments, engine_class, public_methods, put_method
from fuzzgraph.targets.offline.reads import ReadWatch

__all__ = ["BackendWatch"]


@dataclass(slots=True)
class _AtCapture:
    """What one graph was captured with; tensors as aliases that the engine cannot rebind."""

    calls: tuple[Handover, ...]
    records: dict[str, object]
    """What `held` was found in; the host's lists in it may change."""
    held: Held
    inputs: dict[str, torch.Tensor]
    """Path -> integers of the batch that the graph was captured with."""
    on_host: frozenset[str]
    """Paths of what is held in the host's memory, which no graph reads."""


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
        whole: whether graphs hold all that the backend does when it is called, as they hold a whole
            model: then they read the arguments themselves, and not only records among them.
        itself: whether its kernels read its own attributes; else they read records that it holds.
    """

    def __init__(
        self,
        backend: Any,
        graphs: GraphEngine,
        capturing: Callable[[], bool],
        *,
        whole: bool = False,
        itself: bool = False,
    ) -> None:
        self._backend = backend
        self._whole = whole
        self._itself = itself
        self._graphs = graphs
        self._capturing = capturing
        self._calls: list[_Call] = []
        self._depth = 0
        self._before: dict[str, object] | None = None
        self._name = engine_class(backend).__name__
        self._captured: dict[Hashable, _AtCapture] = {}
        self._prepared: dict[str, Part] = {}
        self._records: list[object] = []
        self._reads = ReadWatch()
        self._returned: dict[str, object] = {}
        for name in [*public_methods(backend)]:
            put_method(backend, name, self._watched(name, getattr(backend, name)))

    def begin(self) -> None:
        """Forget what was handed over: it was for a forward that nobody asks about."""
        self._calls.clear()
        self._records.clear()
        self._reads = ReadWatch()
        self._before = None

    def captured(self, key: Hashable) -> None:
        """Keep what graph `key`, captured just now, was captured with."""
        inputs: dict[str, torch.Tensor] = {}
        # The first call's, from last to first: later ones come from within the forward, which may
        # have put its own intermediates into the batch.
        for call in () if self._itself else reversed(self._calls):
            inputs.update(call.aliases if self._whole else _in_records(call.aliases))
        # Integers only: what selects memory or counts. Queries and keys are the forward's own.
        inputs = {
            path: each
            for path, each in inputs.items()
            if not each.is_floating_point() and not self._on_host(each)
        }
        records = self._held()
        held = held_by(records)
        on_host = frozenset(path for path, each in held.tensors.items() if self._on_host(each))
        with as_it_is():
            held.tensors = {
                path: each.detach() for path, each in held.tensors.items() if path not in on_host
            }
        calls = self._taken()
        self._captured[key] = _AtCapture(calls, records, held, inputs, on_host)
        if self._graphs.graphs:
            newest: Any = self._graphs.graphs[-1]
            about = functools.partial(self._about_to_replay, key)
            newest.before_replay = _both(newest.before_replay, about)
        self.begin()

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
        calls = self._taken()
        before = self._before
        self.begin()
        records = self._held()
        now, graph = held_by(records), None if key is None else self._captured.get(key)
        # What a preparation leaves alone may be of a step before; without a call nothing is new.
        if before is None:
            before = {**records, **now.tensors}
        changed = [path for path, each in now.tensors.items() if before.get(path) is not each]
        fresh = {root for root, record in records.items() if before.get(root) is not record}
        if graph is None:
            held = held_handover(self._name, now.only(fresh | set(map(root_of, changed))))
        else:
            held = held_handover(self._name, now.only(fresh), self._as_captured(graph))
            # A forward may write its inputs, as drafts do: they count as they were before it.
            held.tensors |= self._prepared
        self._prepared = {}
        with as_it_is():
            if graph is not None:
                on_host = graph.on_host & now.tensors.keys()
                held.tensors |= {path: part_of(now.tensors[path]) for path in on_host}
            # An empty view, as an idle batch gets it, lies nowhere.
            there = (path for path in changed if now.tensors[path].numel())
            held.rebound = {path: now.tensors[path].data_ptr() for path in there}
        # A record without a tensor has nothing that a kernel could miss.
        held_then = {root_of(path) for path in before if "." in path}
        held.dropped = tuple(root for root in before if root in held_then - records.keys())
        return (*calls, held)

    def _taken(self) -> tuple[Handover, ...]:
        """The calls of this run, with what the backend did not read of them."""
        calls = tuple(call.taken for call in self._calls)
        for call in calls:
            call.unread = self._reads.unread(call.to, call.kinds)
        return calls

    def _as_captured(self, graph: _AtCapture) -> Held:
        """What a graph was captured with; lists of numbers as these records have them now."""
        if not graph.held.numbers:
            return graph.held
        return replace(graph.held, numbers=held_by(graph.records).numbers)

    def at_capture(self, key: Hashable | None) -> tuple[Handover, ...]:
        """The calls by which graph `key` was captured; without values. None of an eager run."""
        graph = None if key is None else self._captured.get(key)
        return () if graph is None else graph.calls

    def _watched(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        arguments = Arguments(self._backend, name, method)
        to = f"{self._name}.{name}"

        @functools.wraps(method)
        @relay
        def watched(*args: Any, **kwargs: Any) -> Any:
            # What a backend hands on to itself is its own business.
            if not self._depth and (args or kwargs):
                self._take(to, arguments.named(args, kwargs))
            self._depth += 1
            try:
                with nullcontext() if self._depth > 1 else self._reads:
                    result = method(*args, **kwargs)
            finally:
                self._depth -= 1
            if not self._depth and is_record(result):
                self._returned["returned"] = result
            return result

        return watched

    def _take(self, to: str, arguments: dict[str, Any]) -> None:
        if self._before is None and not self._capturing():
            records = self._held()
            self._before = {**records, **held_by(records).tensors}
        number = sum(call.taken.to == to for call in self._calls)
        taken = Handover(to, "call", number)
        call = _Call(taken)
        readable = not self._capturing()
        # A batch goes through several methods; it is taken down where it is handed over first.
        fresh = {name: each for name, each in arguments.items() if self._is_fresh(each)}
        for name, record in records_in(fresh).items():
            self._reads.add(f"{to}.{name}", record)
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
                elif is_numbers(value):
                    taken.tensors[path] = numbers_part(value)
                elif (scalar := scalar_of(value)) is not None:
                    taken.scalars[path] = scalar
        if taken.tensors:
            self._calls.append(call)

    def _held(self) -> dict[str, object]:
        """The records that hold what the backend has prepared."""
        own = vars(self._backend)
        if self._itself:
            return {"self": SimpleNamespace(**own)}
        return {**records_in(own), **self._returned}

    def _on_host(self, tensor: torch.Tensor) -> bool:
        return self._graphs.side_of(tensor) == "host"

    def _is_fresh(self, argument: object) -> bool:
        """Whether a record was not handed over before in this run."""
        known = any(each is argument for each in self._records)
        if not known and is_record(argument):
            self._records.append(argument)
        return not known


def _both(first: Callable[[], None], second: Callable[[], None]) -> Callable[[], None]:
    def both() -> None:
        first()
        second()

    return both


def _in_records(aliases: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Those that came in a record, which the engine keeps and reads while it captures."""
    return {path: tensor for path, tensor in aliases.items() if "." in path}
