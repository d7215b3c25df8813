"""Records a run of a kernel, and makes or extends its trace.

A trace is sound because values reach Python by traced operations alone: a handle whose values are
read outside of one makes the trace void, and so does an operand that no operation made, a result
of an unknown kind, or a global that may change.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import GeneratorType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorHandle

from fuzzgraph.lanes.handles import Handle, tag_of
from fuzzgraph.lanes.integers import LaneInt
from fuzzgraph.lanes.kernel_source import kernel_line
from fuzzgraph.lanes.operands import BLOCKS, PLAIN, Constant, Ref, Several, changes, is_constant
from fuzzgraph.lanes.playback_calls import name_of, place_results, prepare
from fuzzgraph.lanes.trace import Facts, Operation, Path, Trace, outcome
from fuzzgraph.lanes.traced import set_recorder
from fuzzgraph.lanes.watched import UNWATCHED, WATCHED

# Values of one trace, all paths together; a kernel with more runs as it is.
_LONGEST = 20_000

# Parts of the names of operations whose result depends on more than their operands, or that do
# something. All others give the same for the same constants, and are not played back for these.
_NOT_FOLDED = (
    "program", "load", "store", "atomic", "assert", "print", "barrier", "asm", "extern",
    "descriptor", "block_ptr", "advance", "assume", "dot", "histogram",
)  # fmt: skip
_PLAIN_KINDS = frozenset(PLAIN)
_CHOSEN_BY = frozenset((bool, int, float, str, range, type(NotImplemented)))


def record(trace: Trace, kernel: Callable[..., Any], arguments: Any, inputs: Sequence[Any]) -> None:
    """Run the kernel, and take down what its trace does not have yet."""
    if not trace.off and not trace.globals_hold:
        trace.off = "a global changed"
    if trace.off or len(trace.values) > _LONGEST:
        kernel(**arguments)
        return
    recording = Recording(trace, inputs)
    semantic = interpreter.interpreter_semantic
    builder = semantic.builder
    with recording.watching():
        semantic.builder = _RecordedBuilder(recording, builder)
        try:
            kernel(**arguments)
        finally:
            semantic.builder = builder
    recording.end()


class Recording:
    """One recorded run: follows the trace as far as it goes, then adds to it."""

    def __init__(self, trace: Trace, inputs: Sequence[Any]) -> None:
        self._trace = trace
        self._path = trace.root
        self._at = 0
        self._inside = False
        self._known: dict[int, Any] = {}
        """id -> index of a value that changes between runs, or the constant itself."""
        self._alive: list[Any] = []
        self._views: dict[int, int] = {}
        """id of an argument's view -> the index of the input."""
        for index, handle in enumerate(inputs, start=1):
            if (tag := tag_of(handle)) is not None:
                self._views[id(tag.view)] = index
            trace.learn(index, self._facts(handle))
            self._hold(handle, index)
        if len(self._known) != len(inputs):
            self.spoil("one handle is two inputs")
        if trace.unsure:
            self.spoil(trace.unsure)

    # ---- what the kernel does

    def run(self, function: Any, args: tuple[Any, ...], kwargs: Any, folded: bool = True) -> Any:
        """Call a function and take it down; what it calls in turn belongs to it."""
        if self._inside or self._trace.off:
            return function(*args, **kwargs)
        given = tuple(self._operand(each) for each in args)
        named = {name: self._operand(each) for name, each in kwargs.items()}
        self._inside = True
        try:
            if folded and not any(map(changes, (*given, *named.values()))):
                result = function(*args, **kwargs)
                self._fold(result)
                return result
            operation = self._next(function, given, named)
            result = function(*args, **kwargs)
            if operation is not None:
                self._settle(operation, result)
            return result
        finally:
            self._inside = False

    def enter(self, function: Any) -> None:
        """Note that the kernel called this device function."""
        if not self._inside and not self._trace.off:
            reason = self._trace.enter(function)
            if reason:
                self.spoil(reason)

    def looked_at(self, handle: Any) -> None:
        """A handle's values are read; outside of an operation that makes the trace void."""
        if not self._inside and id(handle) in self._known:
            self.spoil(f"values read at {kernel_line()}")

    def spoil(self, reason: str) -> None:
        """Never play this trace back, nor record it."""
        self._trace.off = self._trace.off or reason

    def end(self) -> None:
        """The kernel has returned."""
        if self._at < len(self._path.steps) or self._path.fork is not None:
            self.spoil("two runs differ")
        self._path.complete = True

    # ---- following and adding to the trace

    def _next(self, function: Any, args: Any, kwargs: Any) -> Operation | None:
        """The operation of the trace that this call is; added if the trace ends here."""
        if self._trace.off:
            return None
        path = self._path
        known = path.steps[self._at] if self._at < len(path.steps) else path.fork
        if known is None:
            known = Operation(function, args, kwargs)
            # A fork until it is seen to have a single outcome: it may raise.
            path.fork, known.paths = known, {}
            path.run = None
            self._note_uses((*args, *kwargs.values()))
            prepare(known, self._trace)
        elif (known.function, known.args, known.kwargs) != (function, args, kwargs):
            self.spoil("two runs differ")
            return None
        return known

    def _settle(self, operation: Operation, result: Any) -> None:
        """Note what an operation gave, and go on along its outcome."""
        parts, chosen = _parts(result)
        if parts is None:
            self.spoil(f"{name_of(operation.function)} gave a {type(result).__name__}")
            return
        if operation.results is None:
            place_results(operation, self._trace, result, len(parts))
            self._trace.owners |= dict.fromkeys(operation.results or (), self._path)
        assert operation.results is not None
        if len(operation.results) != len(parts):
            self.spoil("two runs differ")
            return
        for index, part in zip(operation.results, parts, strict=True):
            self._trace.learn(index, self._facts(part))
            self._hold(part, index)
        self._go_on(operation, chosen)

    def _note_uses(self, operands: Sequence[Any]) -> None:
        """Note which results of earlier paths the present one takes."""
        for operand in operands:
            if isinstance(operand, Several):
                self._note_uses(operand.parts)
            elif isinstance(operand, Ref):
                owner = self._trace.owners.get(operand.index)
                if owner is None or owner is self._path:
                    continue
                if operand.index not in owner.escaping:
                    owner.escaping.add(operand.index)
                    owner.run = None

    def _facts(self, value: Any) -> Facts | None:
        """What is known of a handle; None for any other value."""
        if type(value) not in (Handle, TensorHandle):
            return None
        data, tag = value.data, tag_of(value)
        if not isinstance(data, np.ndarray):
            return None
        source = 0 if tag is None else self._views.get(id(tag.view), -1)
        if source < 0:
            return None
        grain = 0 if tag is None else tag.grain
        return Facts(data.dtype, data.shape[1:], value.dtype, source, grain)

    def _go_on(self, operation: Operation, chosen: Any) -> None:
        path = self._path
        if chosen is _ONLY:
            if path.fork is operation:
                if operation.paths:
                    self.spoil("two runs differ")
                    return
                path.fork, operation.paths = None, None
                path.steps.append(operation)
            self._at += 1
            return
        if path.fork is not operation or operation.paths is None:
            self.spoil("two runs differ")
            return
        self._path = operation.paths.setdefault(chosen, Path())
        self._at = 0

    def _hold(self, value: Any, index: int) -> None:
        """Know a value as the one at an index, and notice when it is looked at."""
        if type(value) in _CHOSEN_BY:
            return  # Python's own: a constant on the path that it chose
        self._known[id(value)] = index
        self._alive.append(value)
        watched = WATCHED.get(type(value))
        if watched is not None:
            value.__class__ = watched

    def _fold(self, result: Any) -> None:
        """Know the results of an operation on constants as constants."""
        for each in result if isinstance(result, (tuple, list)) else (result,):
            part = each.handle if isinstance(each, tl.tensor) else each
            if type(part) not in _PLAIN_KINDS:
                self._known[id(part)] = Constant(part)
                self._alive.append(part)

    # ---- operands

    def _operand(self, value: Any) -> Any:
        """What stands for an argument in the trace: a `Ref`, a `Constant`, or a list of these."""
        kind = type(value)
        if kind in _PLAIN_KINDS:
            return Constant(value)
        if isinstance(value, tl.tensor):
            inner = self._known.get(id(value.handle))
            if isinstance(inner, int):
                return Ref(inner, value.type)
            return Constant(value) if inner is not None else self._stranger(value)
        known = self._known.get(id(value))
        if known is not None:
            return Ref(known) if isinstance(known, int) else known
        if isinstance(value, (list, tuple, tl.core.tuple)):
            parts = [self._operand(each) for each in value]
            return Several(kind, parts) if any(map(changes, parts)) else Constant(value)
        return Constant(value) if is_constant(value) else self._stranger(value)

    def _stranger(self, value: Any) -> Any:
        self.spoil(f"an operand of type {type(value).__name__} from elsewhere")
        return Constant(value)

    @contextmanager
    def watching(self) -> Iterator[None]:
        """Inside, this run is recorded; afterwards nothing is watched any more."""
        set_recorder(self)
        try:
            yield
        finally:
            set_recorder(None)
            for value in self._alive:
                if type(value) in UNWATCHED:
                    value.__class__ = UNWATCHED[type(value)]


class _RecordedBuilder:
    """The builder as a recorded kernel sees it."""

    def __init__(self, recording: Recording, builder: Any) -> None:
        self._recording = recording
        self._builder = builder

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._builder, name)
        if not callable(found):
            return found
        folded = name.startswith(("get_", "create_", "cast_")) and not any(
            part in name for part in _NOT_FOLDED
        )
        recording = self._recording

        def call(*args: Any, **kwargs: Any) -> Any:
            return recording.run(found, args, kwargs, folded)

        self.__dict__[name] = call
        return call


_ONLY = object()
"""The outcome of an operation that leaves nothing to choose."""


def _parts(result: Any) -> tuple[list[Any] | None, Any]:
    """The values of a result that later operations may use, and the outcome.

    None in place of the values where a result is of a kind that is not understood.
    """
    if result is None:
        return [], _ONLY
    if isinstance(result, (TensorHandle, *BLOCKS)):
        return [result], _ONLY
    if isinstance(result, tl.tensor):
        return [result.handle], _ONLY
    if isinstance(result, (tuple, list)):
        parts = [each.handle if isinstance(each, tl.tensor) else each for each in result]
        fine = parts and all(isinstance(each, TensorHandle) for each in parts)
        return (parts if fine else None), _ONLY
    if isinstance(result, (LaneInt, GeneratorType)) or type(result) in _CHOSEN_BY:
        return [result], outcome(result)
    return None, None
