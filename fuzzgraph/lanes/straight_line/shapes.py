"""Writes down program ids and operations that give values another shape."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import numpy as np

from fuzzgraph.lanes.operands import Constant, Ref
from fuzzgraph.lanes.straight_line.results import CannotWrite, Results
from fuzzgraph.lanes.trace import Operation
from fuzzgraph.lanes.types import np_dtype, plain_sizes

_ALL = slice(None)


def program_id(results: Results, step: Operation, axis: Any) -> None:
    """As `LaneBuilder.create_get_program_id`."""
    results.define(step, f"builder.ids[{results.lines.name(_constant(axis))}]")


def splat(results: Results, step: Operation, ret_ty: Any, arg: Any) -> None:
    """As `LaneBuilder.create_splat`."""
    before, made, sizes = results.of(arg), results.made(step), plain_sizes(_constant(ret_ty).shape)
    kind = np.dtype(np_dtype(before.kind))
    if kind != made.numpy or sizes != made.sizes:
        raise CannotWrite
    results.check_fits(sizes)
    name = results.lines.name
    given = f"{results.array(arg)}, {name(sizes)}, {name((1,) * len(sizes))}, {name(kind)}"
    results.define(step, f"{name(_splatted)}({given})")


def broadcast(results: Results, step: Operation, arg: Any, shape: Any) -> None:
    """As `LaneBuilder.create_broadcast`; nothing is done where numpy broadcasts by itself."""
    results.of(arg)
    sizes = plain_sizes(_constant(shape))
    if sizes != results.made(step).sizes or not isinstance(arg, Ref):
        raise CannotWrite
    results.check_fits(sizes)
    results.broadcast(step, arg)


def expand_dims(results: Results, step: Operation, arg: Any, axis: Any) -> None:
    """As `LaneBuilder.create_expand_dims`."""
    results.made(step)
    place = _constant(axis)
    if place < 0:
        place += len(results.of(arg).sizes) + 1
    index = results.lines.name((_ALL,) * (place + 1) + (None,))
    results.define(step, f"{results.array(arg)}[{index}]")


def _constant(operand: Any) -> Any:
    if not isinstance(operand, Constant):
        raise CannotWrite
    return operand.value


def _splatted(data: Any, sizes: tuple[int, ...], ones: tuple[int, ...], kind: Any) -> Any:
    full = np.empty((len(data), *sizes), kind)
    full[...] = data.reshape((len(data), *ones))
    return full
