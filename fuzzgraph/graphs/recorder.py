"""Captures and replays a graph without a GPU: the recorder.

While it captures, it listens to guarded memory: it keeps every operation with its tensors and
scalars frozen, and every interpreted Triton launch with its arguments. A replay runs that list on
the same memory, without any Python of the engine. As on a device, a replay sees an in-place update
of a captured buffer, keeps a captured scalar, and does not see a reallocated buffer.

The pool that all graphs of a session share is modelled: before each replay the intermediates of
every captured graph are poisoned, because another graph's replay may overwrite them.

Streams are told apart: work of a stream that waits for nothing of the capture is no part of it, one
that the capturing stream does not wait for at the end is refused, and a replay may run what one
stream was given as late as waits allow (`memory.stream_order`).

Not modelled: races within a kernel, asynchronous reuse. Random operations use the default
generator's present state, as eager ones do; a device graph advances a state of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from functools import cached_property, partial
from typing import Any, NamedTuple, TypeVar

import torch

from fuzzgraph.errors import CaptureError
from fuzzgraph.graphs.engagement import WatchedEngine, WatchedForward, WatchedGraph
from fuzzgraph.graphs.playback import Step, copy_back, frozen, in_place, straight_into
from fuzzgraph.graphs.rules import HostReads, refuse_forbidden
from fuzzgraph.memory.launches import Launch
from fuzzgraph.memory.listener import Listener
from fuzzgraph.memory.operator_facts import Facts, tensors_in
from fuzzgraph.memory.placement import memory_of
from fuzzgraph.memory.sides import works_on_host
from fuzzgraph.memory.source_lines import innermost_source
from fuzzgraph.memory.stream_order import ORDER, Issued, late_order, late_stream, streams_apart
from fuzzgraph.memory.tracing import RecordedOp, launched_op
from fuzzgraph.relays import relay

Outputs = TypeVar("Outputs")


class Recorder(WatchedEngine):
    """A graph engine that records dispatched operations and kernel launches."""

    name = "recorder"

    @relay
    def capture(self, forward: Callable[[], Outputs], *, key: str) -> RecordedGraph[Outputs]:
        """Record one run of `forward`.

        Raises:
            CaptureError: `forward` did what a device capture forbids.
        """
        watched = WatchedForward(forward)
        tape = _Tape(key)
        with self.memory.intercept("graph", tape), HostReads(key, tape.forget):
            outputs = watched()
        tape.refuse_unjoined()
        graph = RecordedGraph(key, self, tape, watched, outputs)
        self._graphs.append(graph)
        return graph

    @contextmanager
    def segment(
        self, *, key: str, continues: bool = False, prepares: bool = False
    ) -> Iterator[RecordedGraph[None]]:
        """Record what runs inside.

        Args:
            prepares: see `GraphEngine`. Otherwise all that is captured counts as the device's: many
                an engine that runs on a CPU names no device for its buffers.

        Raises:
            CaptureError: something did what a device capture forbids.
        """
        side_of = self.memory.side_of if prepares else None
        tape, nothing = _Tape(key, side_of), WatchedForward.nothing()
        graph = RecordedGraph(key, self, tape, nothing, None, continues=continues)
        apart = self.memory.host_apart() if prepares else nullcontext()
        reads = HostReads(key, tape.forget, side_of)
        with self.memory.intercept("graph", tape), apart, reads:
            yield graph
        tape.refuse_unjoined()
        self._graphs.append(graph)


class _Tape(Listener):
    """Keeps what happens during a capture, as a raw trace and as replay steps.

    A tensor of the engine is kept as an alias, which the engine cannot rebind or resize. One alias
    serves until the tensor itself is rebound or resized.
    """

    def __init__(self, key: str, side_of: Callable[[torch.Tensor], str] | None = None) -> None:
        self.key = key
        self._side_of = side_of
        self.trace: list[_Raw | RecordedOp] = []
        self.steps: list[Step] = []
        self.issued: list[Issued] = []
        """How each step was given."""
        self.sides: dict[int, str] = {}
        """Stream beside the capturing one -> the engine's line that gave it work first."""
        self._begun = ORDER.issue()
        # By `id`. The tensor is kept too, so that no other tensor gets the same id.
        self._aliases: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._resized: torch.Tensor | None = None

    def forget(self) -> None:
        """Drop all aliases: a tensor may have got other memory or another shape."""
        self._aliases.clear()

    def before_operation(self, func: Any, facts: Facts, args: Any, kwargs: Any) -> None:
        may_be_forbidden = facts.forbidden or facts.index or facts.is_lift
        if may_be_forbidden and not self._is_left_out(args, kwargs):
            refuse_forbidden(facts, func, args, kwargs, self.key)
        if facts.is_resize:
            self._resized = memory_of(args[0])  # before the resize moves it

    def on_operation(
        self,
        func: Any,
        facts: Facts,
        args: Any,
        kwargs: Any,
        out: Any,
        fresh: tuple[torch.Tensor, ...],
    ) -> None:
        if facts.reshapes:
            # This operation gets aliases of its own, because each replay reshapes them again.
            self.forget()
            args, kwargs = frozen(args), {name: frozen(item) for name, item in kwargs.items()}
        else:
            args = self._kept(args)
            kwargs = {name: self._keep(item) for name, item in kwargs.items()} if kwargs else _NONE
        # Views and empty tensors are no work on a device. They stay in the trace for exporters.
        works = bool(facts.writes or fresh) and not facts.is_empty
        works = works and not self._is_left_out(args, kwargs)
        alias = self._keep(out)
        source = innermost_source(_GUARD)
        issued = self._captured(source) if works else None
        works = issued is not None
        self.trace.append((func, facts, args, kwargs, alias, source, works))
        if issued is not None:
            self._take(self._step(func, facts, args, kwargs, out, alias, fresh), issued)

    def _take(self, step: Step, issued: Issued) -> None:
        self.steps.append(step)
        self.issued.append(issued)

    def _captured(self, source: str) -> Issued | None:
        """How work is given that a device captures now; None for work of a stream that waits for
        nothing of the capture, which runs once and is no part of it."""
        issued, begun = ORDER.issue(), self._begun
        if issued.stream == begun.stream:
            return issued
        if issued.after.get(begun.stream, 0) < begun.number:
            return None
        self.sides.setdefault(issued.stream, source)
        return issued

    def refuse_unjoined(self) -> None:
        """Raise if the capturing stream did not wait for all that other streams were given.

        Raises:
            CaptureError: as a device does at the end of such a capture.
        """
        if not self.sides:
            return
        joined = ORDER.clock(self._begun.stream)
        for issued in reversed(self.issued):
            stream = issued.stream
            if stream in self.sides and joined.get(stream, 0) < issued.number:
                raise CaptureError(
                    f"graph {self.key!r} ends before work of a side stream, given at"
                    f" {self.sides[stream]}, is waited for. A device graph forbids it. Wait for the"
                    " stream or for an event behind its work before the capture ends."
                )

    def _is_left_out(self, args: Any, kwargs: Any) -> bool:
        """Whether this is the host's work, which no graph of a preparation holds."""
        return self._side_of is not None and works_on_host(args, kwargs, self._side_of)

    def _keep(self, value: Any) -> Any:
        if isinstance(value, torch.Tensor):
            known = self._aliases.get(id(value))
            if known is None:
                known = self._aliases[id(value)] = value, value.detach()
            return known[1]
        kind = value.__class__
        if kind is tuple or kind is list:
            return kind(map(self._keep, value))
        return value

    def _kept(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        keep, plain = self._keep, _PLAIN
        return tuple([item if item.__class__ in plain else keep(item) for item in args])

    def _step(
        self,
        func: Any,
        facts: Facts,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        out: Any,
        alias: Any,
        fresh: tuple[torch.Tensor, ...],
    ) -> Step:
        """The call that does this operation again."""
        if facts.is_resize:
            assert self._resized is not None, "before_operation saw the same resize"
            return _moved(self._resized, memory_of(args[0]))
        if facts.writes:
            return in_place(func, facts, args, kwargs)
        if isinstance(out, torch.Tensor):
            step = straight_into(func, facts, args, kwargs, alias)
            return copy_back(func, args, kwargs, [alias]) if step is None else step
        # Several results: only those with memory of their own have to be copied back.
        ids = set(map(id, fresh))
        kept = [each if id(own) in ids else None for own, each in zip(out, alias, strict=True)]
        if len(kept) == 1 and kept[0] is not None:
            step = straight_into(func, facts, args, kwargs, kept[0])
            if step is not None:
                return step
        return copy_back(func, args, kwargs, kept)

    def on_launch(
        self, launch: Launch, executor: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> None:
        source = "" if ORDER.current == self._begun.stream else innermost_source()
        issued = self._captured(source)
        if issued is None:
            return
        args, kwargs = frozen(args), {name: frozen(item) for name, item in kwargs.items()}
        self.trace.append(launched_op(executor, args, kwargs))
        self._take(partial(launch, executor, *args, **kwargs), issued)


# Operator, facts, arguments, keywords, results, source line, whether a replay runs it.
_Raw = tuple[Any, Facts, tuple[Any, ...], dict[str, Any], Any, str, bool]
# Frames of the guard and its listener that lie between an operation and the engine's line. Skipping
# them saves time. One too few only costs time; one too many could skip the engine's own line.
_GUARD = 4
_NONE: dict[str, Any] = {}
_PLAIN = frozenset((int, float, bool, type(None), torch.dtype, torch.device, str))


def _public(raw: _Raw | RecordedOp) -> RecordedOp:
    if isinstance(raw, RecordedOp):
        return raw
    func, facts, args, kwargs, out, source, works = raw
    outputs = tuple(item for item in _listed(out) if isinstance(item, torch.Tensor))
    return RecordedOp(facts.text, func, args, dict(kwargs), outputs, source, replayed=works)


def _listed(out: Any) -> list[Any]:
    return list(out) if isinstance(out, (tuple, list)) else [out]


def _read_and_written(
    facts: Facts, args: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    named: list[tuple[int | str, Any]] = [*enumerate(args), *kwargs.items()]
    read = tensors_in([value for name, value in named if name not in facts.writes])
    return read, tensors_in([value for name, value in named if name in facts.writes])


def _moved(old: torch.Tensor, new: torch.Tensor) -> Step:
    """What a resize does to memory: the elements come along as they lie, if it moved the tensor."""
    if old.data_ptr() == new.data_ptr():
        return relay(lambda: None)
    kept = min(len(old), len(new))
    source, target = old[:kept], new[:kept]
    return relay(lambda: target.copy_(source))


class Work(NamedTuple):
    """An operation or launch of a captured graph."""

    name: str
    source: str
    """The engine's line that issued it: `file.py:123 in function`."""
    read: Sequence[torch.Tensor]
    """Of a launch all that it was passed: what a kernel does with it is not known here."""
    written: Sequence[torch.Tensor] = ()


class RecordedGraph(WatchedGraph[Outputs]):
    """A captured list of operations, replayed on the memory it was captured on."""

    def __init__(
        self,
        key: str,
        recorder: Recorder,
        tape: _Tape,
        watched: WatchedForward[Outputs],
        outputs: Outputs,
        *,
        continues: bool = False,
    ) -> None:
        super().__init__(
            key, recorder.memory, recorder.replayed, watched, outputs, continues=continues
        )
        self._raw = tape.trace
        self._trace: tuple[RecordedOp, ...] | None = None
        self._steps = tape.steps
        self._issued = tape.issued
        self._sides = tape.sides
        self._late: dict[int, list[Step]] = {}

    @cached_property
    def streams_apart(self) -> Sequence[int]:
        """See `CapturedGraph`."""
        return streams_apart(self._issued) if self._sides else ()

    @property
    def side_lines(self) -> Sequence[str]:
        """See `CapturedGraph`."""
        return tuple(self._sides.values())

    @property
    def trace(self) -> tuple[RecordedOp, ...]:
        """Every operation and launch of the capture, in order; exporters print it."""
        if self._trace is None:
            self._trace = tuple(map(_public, self._raw))
        return self._trace

    def work(self) -> Iterator[Work]:
        """What a replay runs, in order, with the tensors that it reads and writes."""
        for raw in self._raw:
            if isinstance(raw, RecordedOp):
                yield Work(
                    raw.name, raw.source, tuple(tensors_in([*raw.args, *raw.kwargs.values()]))
                )
                continue
            _, facts, args, kwargs, _, source, works = raw
            if works:
                yield Work(facts.text, source, *_read_and_written(facts, args, kwargs))

    def aliases(self) -> Iterator[torch.Tensor]:
        """The graph's own tensors, on memory that it was captured with."""
        for raw in self._raw:
            if isinstance(raw, RecordedOp):
                values = [*raw.args, *raw.kwargs.values(), *raw.outputs]
            else:
                values = [*raw[2], *raw[3].values(), *_listed(raw[4])]
            yield from tensors_in(values)

    @relay
    def _run(self) -> None:
        # Past every mode: inside an `intercept`, as when an engine replays while it captures, the
        # replay's own operations must not be guarded or recorded; and elsewhere each operation
        # would go through the modes that its capture went through already.
        with torch.inference_mode(), self._memory.unguarded():
            for step in self._in_order():
                step()

    def _in_order(self) -> list[Step]:
        """The steps as they were given, or what one stream was given as late as it may run."""
        late = late_stream()
        if late is None or not self._sides:
            return self._steps
        if late not in self._late:
            self._late[late] = [self._steps[at] for at in late_order(self._issued, late)]
        return self._late[late]

    def close(self) -> None:
        super().close()
        self._raw, self._trace, self._steps = [], None, []
        self._issued, self._late = [], {}
