"""Keeps the traces of this process: one for each kernel, types of arguments, and constants."""

from __future__ import annotations

from typing import Any

from fuzzgraph.lanes.arguments import Arguments
from fuzzgraph.lanes.trace import Trace

# The oldest goes first. A campaign's configs come to a few dozen for each kernel.
_MOST = 512

_TRACES: dict[Any, Trace] = {}


def trace_of(kernel: Any, arguments: Arguments) -> Trace | None:
    """The trace of launches like this one; None where their arguments are beyond it."""
    if arguments.kinds is None:
        return None
    key = kernel, arguments.kinds
    trace = _TRACES.get(key)
    if trace is None:
        if len(_TRACES) >= _MOST:
            del _TRACES[next(iter(_TRACES))]
        trace = _TRACES[key] = Trace(kernel, len(arguments.inputs))
    return trace


def kept() -> list[Trace]:
    """Every trace that is kept now, the oldest first."""
    return list(_TRACES.values())


def forget() -> None:
    """Drop every trace."""
    _TRACES.clear()
