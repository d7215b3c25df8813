"""Writes down loads and stores: calls of the same checked memory."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import numpy as np

from fuzzgraph.lanes.handles import pointed
from fuzzgraph.lanes.kernel_source import playing_at
from fuzzgraph.lanes.operands import Constant
from fuzzgraph.lanes.straight_line.results import CannotWrite, Results
from fuzzgraph.lanes.trace import Operation
from fuzzgraph.lanes.types import np_dtype


def load(results: Results, step: Operation, ptrs: Any, *_: Any) -> None:
    """As `CheckedBuilder.create_load`."""
    masked_load(results, step, ptrs, _NONE, _NONE)


def masked_load(
    results: Results, step: Operation, ptrs: Any, mask: Any, other: Any, *_: Any
) -> None:
    """As `LaneBuilder.create_masked_load`."""
    place = results.of(ptrs)
    results.made(step)
    on, default = _mask(results, mask), _default(results, other)
    kind = results.lines.name(np_dtype(pointed(place.kind)))
    given = f"{results.tag(place)}, {results.array(ptrs)}, {on}, {default}, {kind}"
    _at_line(results, step, f"{results.assigned(step)} = memory.load({given})")


def store(results: Results, step: Operation, ptr: Any, value: Any, *_: Any) -> None:
    """As `CheckedBuilder.create_store`."""
    masked_store(results, step, ptr, value, _NONE)


def masked_store(
    results: Results, step: Operation, ptrs: Any, value: Any, mask: Any, *_: Any
) -> None:
    """As `LaneBuilder.create_masked_store`."""
    place = results.of(ptrs)
    results.of(value)
    on = _mask(results, mask)
    given = f"{results.tag(place)}, {results.array(ptrs)}, {results.array(value)}, {on}"
    _at_line(results, step, f"memory.store({given})")


_NONE = Constant(None)


def _mask(results: Results, mask: Any) -> str:
    if mask == _NONE:
        return "None"
    if results.of(mask).numpy != np.bool_:
        raise CannotWrite
    return results.array(mask)


def _default(results: Results, other: Any) -> str:
    if other == _NONE:
        return "None"
    results.of(other)
    return results.array(other)


def _at_line(results: Results, step: Operation, line: str) -> None:
    results.lines.add(f"with {results.lines.name(playing_at(step.call))}: {line}")
