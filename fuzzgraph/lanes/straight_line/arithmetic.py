"""Writes down elementwise operations, casts, reductions and the arithmetic of pointers."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import numpy as np

from fuzzgraph.lanes.bfloat16_bits import narrowed, widened
from fuzzgraph.lanes.builder import most_bytes
from fuzzgraph.lanes.checked import is_converted, pointed_bytes
from fuzzgraph.lanes.operands import Constant, Ref
from fuzzgraph.lanes.reductions import is_brain_float, plain_reduction, reduced_axes
from fuzzgraph.lanes.straight_line.meaning import operation_of
from fuzzgraph.lanes.straight_line.results import CannotWrite, Results
from fuzzgraph.lanes.trace import Operation
from fuzzgraph.lanes.types import np_dtype

_ADDRESS = np.dtype(np.uint64)
# On booleans these give what they give on integers of one bit.
_BITWISE = (np.bitwise_and, np.bitwise_or, np.bitwise_xor)


def binary(results: Results, step: Operation, lhs: Any, rhs: Any) -> None:
    """As `LaneBuilder.binary_op`."""
    operation = operation_of(step)
    one, two, made = results.of(lhs), results.of(rhs), results.made(step)
    if not isinstance(operation, np.ufunc) or len(one.sizes) != len(two.sizes):
        raise CannotWrite
    if one.numpy == two.numpy == np.bool_ and operation not in _BITWISE:
        raise CannotWrite
    given = operation.resolve_dtypes((one.numpy, two.numpy, None))[-1]
    narrowed = given.itemsize > most_bytes(made.kind) and not made.kind.is_ptr()
    if (np_dtype(made.kind) if narrowed else given) != made.numpy:
        raise CannotWrite
    name = results.lines.name
    text = f"{name(operation)}({', '.join(results.met(lhs, rhs, made))})"
    results.define(step, f"{text}.astype({name(made.numpy)})" if narrowed else text)


def cast(results: Results, step: Operation, src: Any, dst_type: Any, *_: Any) -> None:
    """As `CheckedBuilder.cast_impl`, where numpy casts."""
    before, made = results.of(src), results.made(step)
    if not isinstance(dst_type, Constant) or is_converted(before.kind, dst_type.value):
        raise CannotWrite
    kind = np.dtype(np_dtype(dst_type.value))
    if kind != made.numpy:
        raise CannotWrite
    results.define(step, f"{results.array(src)}.astype({results.lines.name(kind)})")


def move_pointer(results: Results, step: Operation, ptr: Any, offset: Any) -> None:
    """As `CheckedBuilder.create_addptr`."""
    one, two, made = results.of(ptr), results.of(offset), results.made(step)
    if not one.numpy == made.numpy == _ADDRESS or two.numpy.kind not in "iub":
        raise CannotWrite
    name, width = results.lines.name, pointed_bytes(one.kind)
    start, moved = results.met(ptr, offset, made)
    # The same bits: numpy wraps in either direction.
    moved += f".{'view' if two.numpy.itemsize == 8 else 'astype'}({name(_ADDRESS)})"
    if width > 1:
        moved = f"{name(np.multiply)}({moved}, {name(np.uint64(width))})"
    results.define(step, f"{name(np.add)}({start}, {moved})")


def reduction(
    results: Results, step: Operation, input: Any, axis: Any, combine_fn: Any, keep_dims: Any
) -> None:
    """As `reductions.reduced`, where numpy has the reduction."""
    given = (axis, combine_fn, keep_dims)
    if not isinstance(input, Ref) or not all(isinstance(each, Constant) for each in given):
        raise CannotWrite
    before, made = results.of(Ref(input.index)), results.made(step)
    operation = plain_reduction(combine_fn.value)
    if operation is None or not before.sizes:
        raise CannotWrite
    if np.dtype(np_dtype(before.kind.scalar)) != made.numpy:
        raise CannotWrite
    name = results.lines.name
    axes = name(reduced_axes(axis.value, len(before.sizes) + 1))
    how = f"axis={axes}, keepdims={bool(keep_dims.value)}"
    array = results.array(input)
    if is_brain_float(before.kind):
        floats = f"{name(operation)}({name(widened)}({array}), {how})"
        results.define(step, f"{name(narrowed)}({floats})")
    else:
        results.define(step, f"{name(operation)}({array}, {how}).astype({name(made.numpy)})")
