"""How playback calls an operation: where its operands come from, and what stands for its result."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from operator import itemgetter
from typing import Any

import triton.language as tl

from fuzzgraph.lanes.kernel_source import at_line, kernel_line
from fuzzgraph.lanes.operands import Ref, Several
from fuzzgraph.lanes.trace import Operation, Trace

_AT_A_LINE = ("load", "store", "atomic", "descriptor")
"""Parts of the names of operations that access memory, whose records name the kernel's line."""


def prepare(operation: Operation, trace: Trace) -> None:
    """Work out how playback gets the operands."""
    if operation.kwargs or _nested(operation.args):
        operation.call = _resolving(operation.function, operation.args, operation.kwargs)
        operation.getter = whole
    else:
        places = [
            each.index if isinstance(each, Ref) else trace.place(each.value)
            for each in operation.args
        ]
        operation.getter = _getter(places)
    if any(part in name_of(operation.function) for part in _AT_A_LINE):
        operation.call = at_line(operation.call, kernel_line())


def place_results(operation: Operation, trace: Trace, result: Any, count: int) -> None:
    """Decide where playback puts the results, of which there are `count`."""
    places = operation.results = tuple(trace.place() for _ in range(count))
    many = isinstance(result, (tuple, list))
    if many:
        operation.to = slice(places[0], places[-1] + 1)
    elif places:
        operation.to = places[0]
    if any(isinstance(each, tl.tensor) for each in (result if many else (result,))):
        operation.call = _unwrapping(operation.call)


def _nested(args: Sequence[Any]) -> bool:
    return any(
        isinstance(each, Several) or getattr(each, "kind", None) is not None for each in args
    )


def name_of(function: Any) -> str:
    """The name of an operation's function."""
    return str(getattr(function, "__name__", function))


def whole(values: list[Any]) -> tuple[list[Any]]:
    """The operands of a call that picks them itself: all values of the playback."""
    return (values,)


def _getter(places: list[int]) -> Callable[[list[Any]], tuple[Any, ...]]:
    """A function that picks the operands out of the playback's list."""
    if not places:
        return lambda values: ()
    if len(places) == 1:
        only = places[0]
        return lambda values: (values[only],)
    return itemgetter(*places)


def _resolving(function: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Any:
    def call(values: list[Any]) -> Any:
        given = [each.among(values) for each in args]
        return function(*given, **{name: each.among(values) for name, each in kwargs.items()})

    return call


def _unwrapping(function: Any) -> Any:
    """The function, with handles in place of the tensors of its result."""

    def call(*args: Any) -> Any:
        result = function(*args)
        if isinstance(result, (tuple, list)):
            return [each.handle if isinstance(each, tl.tensor) else each for each in result]
        return result.handle

    return call
