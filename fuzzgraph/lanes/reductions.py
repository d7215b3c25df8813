"""Reductions and scans over lanes, with the same bytes as in the stock interpreter.

Sums of floats depend on the order of addition, and numpy's order depends on the layout of an
array. Each lane has the layout of the stock interpreter's array, and the lane axis is the
outermost, so numpy adds within each lane in the order in which it would add in that array.

Numbers of bfloat16 are summed as float32 and rounded once, where a GPU may round after each
addition; the stock interpreter adds up their bits as integers.

A kernel's own combine function sees scalars, as in the stock interpreter: all elements that are
combined in one step become lanes of their own.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime.interpreter import ReduceOps, ScanOps

from fuzzgraph.lanes.bfloat16_bits import narrowed, widened
from fuzzgraph.lanes.brain_floats import with_scalar
from fuzzgraph.lanes.compat import POSITION_OF_EXTREME, flipped
from fuzzgraph.lanes.divergence import Divergence, NotVectorizable
from fuzzgraph.lanes.handles import Handle
from fuzzgraph.lanes.on_demand import language_needed
from fuzzgraph.lanes.traced import traced
from fuzzgraph.lanes.types import block_of, np_dtype, tensor_of

Array = npt.NDArray[Any]


def lane_reduce(
    input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, **kwargs: Any
) -> Any:
    """Replaces `tl.reduce`."""
    return reduced(input, axis, combine_fn, keep_dims)


def lane_scan(input: Any, axis: Any, combine_fn: Any, reverse: bool = False, **kwargs: Any) -> Any:
    """Replaces `tl.associative_scan`."""
    return _scanned(input, axis, combine_fn, reverse)


def with_brain_floats(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The stock interpreter's `tl.reduce`, with bfloat16 as numbers."""

    def reduce(
        input: Any, axis: Any, combine_fn: Any, keep_dims: bool = False, **kwargs: Any
    ) -> Any:
        one = isinstance(input, tl.tensor) and is_brain_float(input.dtype)
        if not one or plain_reduction(combine_fn) is None:
            return stock(input, axis, combine_fn, keep_dims, **kwargs)
        wide = tensor_of(
            Handle(widened(input.handle.data), tl.float32), with_scalar(input.type, tl.float32)
        )
        found = stock(wide, axis, combine_fn, keep_dims, **kwargs)
        return tensor_of(
            Handle(narrowed(found.handle.data), tl.bfloat16), with_scalar(found.type, tl.bfloat16)
        )

    return reduce


# Each is one operation of a trace: a combine function is called in it, for every element.


@traced
def reduced(input: Any, axis: Any, combine_fn: Any, keep_dims: bool) -> Any:
    """One operation for the whole reduction."""
    return _Reduce(axis, combine_fn, keep_dims).apply(input)


@traced
def _scanned(input: Any, axis: Any, combine_fn: Any, reverse: bool) -> Any:
    return _Scan(axis, combine_fn, reverse).apply(input)


def _wrapped(data: Array, dtype: Any) -> Any:
    # numpy sums small integers in int64; Triton keeps the operand's type.
    data = data.astype(np_dtype(dtype))
    kind = block_of(dtype, data.shape[1:]) if data.ndim > 1 else dtype
    return tensor_of(Handle(data, dtype.scalar), kind)


def _behind_lanes(axis: int, data: Array) -> int:
    """The kernel's axis as an axis of `data`, which has the lane axis in front."""
    if data.ndim < 2:
        raise NotVectorizable("reduction of a scalar")
    axes: int = reduced_axes(axis, data.ndim)
    return axes


_DIRECT: dict[Any, Any] = {
    np.sum: np.add.reduce,
    np.max: np.maximum.reduce,
    np.min: np.minimum.reduce,
    np.nanmax: np.fmax.reduce,
    np.nanmin: np.fmin.reduce,
}
"""Reductions of numpy -> what they come to for an array, without its layers of Python."""


def _direct(operation: Callable[..., Array]) -> Callable[..., Array]:
    found: Callable[..., Array] = _DIRECT.get(operation, operation)
    return found


class _Asked(ReduceOps):  # type: ignore[misc]
    """Tells by which operation of numpy the interpreter reduces."""

    def min_max(self, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        return None if idx_reduce_op else val_reduce_op

    def sum(self, input: Any) -> Any:
        return np.sum

    def generic_reduce(self, input: Any) -> Any:
        return None


def plain_reduction(combine_fn: Any) -> Any:
    """The ufunc's `reduce` that a combine function stands for; None for all others."""
    return _DIRECT.get(_Asked(None, combine_fn, False).apply_impl((None,)))


def is_brain_float(kind: Any) -> bool:
    """Whether these are numbers of bfloat16, which lie in arrays as their bits."""
    return bool(kind.scalar == tl.bfloat16)


def reduced_axes(axis: int | None, rank: int) -> Any:
    """The axes of an array over lanes that a kernel's axis means; `rank` is the array's."""
    if axis is None:
        return tuple(range(1, rank))
    return axis + 1 if axis >= 0 else axis + rank


class _Reduce(ReduceOps):  # type: ignore[misc]
    def min_max(self, input: Any, val_reduce_op: Any, idx_reduce_op: Any = None) -> Any:
        input = input[0] if isinstance(input, tuple) else input
        values = _wrapped(self._reduced(input, val_reduce_op), input.dtype)
        if not idx_reduce_op:
            return values
        return values, _wrapped(self._reduced(input, idx_reduce_op), tl.int32)

    def sum(self, input: Any) -> Any:
        return _wrapped(self._reduced(input, np.sum), input.dtype)

    def _reduced(self, input: Any, operation: Callable[..., Array]) -> Array:
        if is_brain_float(input.dtype) and operation not in POSITION_OF_EXTREME:
            return narrowed(self._over_axes(widened(input.handle.data), operation))
        return self._over_axes(input.handle.data, operation)

    def _over_axes(self, data: Array, operation: Callable[..., Array]) -> Array:
        if self.axis is not None:
            axis: Any = _behind_lanes(self.axis, data)
            return _direct(operation)(data, axis=axis, keepdims=self.keep_dims)
        # Over all axes numpy's argmin takes no tuple, and flattening would include the lanes.
        if operation in POSITION_OF_EXTREME:
            raise NotVectorizable("position of an extreme over all axes")
        axis = reduced_axes(None, data.ndim)
        return _direct(operation)(data, axis=axis, keepdims=self.keep_dims)

    def generic_reduce(self, input: Any) -> Any:
        if self.axis is None:
            flat = [each.handle.data.reshape(len(each.handle.data), -1) for each in input]
        else:
            axis = _behind_lanes(self.axis, input[0].handle.data)
            flat = [np.moveaxis(each.handle.data, axis, -1) for each in input]
        steps = _Steps(self.combine_fn, flat, [each.dtype for each in input])
        last = steps.accumulated()[-1]
        results = []
        for each, values in zip(input, last, strict=True):
            values = steps.shaped(values)
            if self.keep_dims:
                rank = each.handle.data.ndim
                missing = range(1, rank) if self.axis is None else (axis,)
                values = np.expand_dims(values, tuple(missing))
            results.append(_wrapped(values, each.dtype))
        return results


class _Scan(ScanOps):  # type: ignore[misc]
    def apply_impl(self, input: Any) -> Any:
        axis = _behind_lanes(self.axis, input[0].handle.data)
        parts = [each.handle.data for each in input]
        if self.reverse:
            parts = [flipped(part, axis) for part in parts]
        # Sums and products take numpy's own scan, as in the stock interpreter.
        if self.combine_fn == tl.standard._sum_combine:
            parts = [np.cumsum(parts[0], axis=axis)]
        elif self.combine_fn == tl.standard._prod_combine:
            parts = [np.cumprod(parts[0], axis=axis)]
        else:
            parts = self._accumulated(input, parts, axis)
        results = [_wrapped(part, each.dtype) for part, each in zip(parts, input, strict=False)]
        if self.reverse:
            for result in results:
                result.handle.data = flipped(result.handle.data, axis)
        return results

    def _accumulated(self, input: Any, parts: Sequence[Array], axis: int) -> list[Array]:
        moved = [np.moveaxis(part, axis, -1) for part in parts]
        steps = _Steps(self.combine_fn, moved, [each.dtype for each in input])
        rounds = steps.accumulated()
        found = []
        for index in range(len(parts)):
            each = [steps.shaped(values[index]) for values in rounds]
            found.append(np.ascontiguousarray(np.moveaxis(np.stack(each, axis=-1), -1, axis)))
        return found


class _Steps:
    """Combines along the last axis, step by step; everything else becomes lanes.

    Args:
        parts: [lanes or 1, ..., steps], one for each element of the combined tuple.
    """

    def __init__(self, combine_fn: Any, parts: Sequence[Array], dtypes: Sequence[Any]) -> None:
        # Parts of one lane and of many may be combined: they all get the full number.
        lanes = max(len(part) for part in parts)
        self._combine = combine_fn.fn
        self._shape = (lanes, *parts[0].shape[1:-1])
        self._parts = [np.broadcast_to(part, (lanes, *part.shape[1:])) for part in parts]
        self._dtypes = dtypes

    def accumulated(self) -> list[list[Array]]:
        """For each step the combined values, flat, in the dtypes of the parts."""
        rounds: list[list[Array]] = [[part[..., 0].ravel() for part in self._parts]]
        for step in range(1, self._parts[0].shape[-1]):
            new: list[Array] = [part[..., step].ravel() for part in self._parts]
            rounds.append(self._combined(rounds[-1], new))
        return rounds

    def _combined(self, old: Sequence[Array], new: Sequence[Array]) -> list[Array]:
        tensors = [
            _wrapped(each, dtype)
            for values in (old, new)
            for each, dtype in zip(values, self._dtypes, strict=True)
        ]
        language_needed()
        # Elements that take different branches cannot be split as programs can.
        try:
            made = self._combine(*tensors)
        except Divergence:
            raise NotVectorizable("combine function that branches on values") from None
        made = made if isinstance(made, tuple) else (made,)
        return [self._stored(each, part) for each, part in zip(made, old, strict=True)]

    def _stored(self, made: Any, like: Array) -> Array:
        values = made.handle.data if isinstance(made, tl.core.tensor) else np.array([made])
        stored = np.broadcast_to(values, like.shape).astype(like.dtype)
        # A value that does not fit its type: here it would wrap after each step, and the stock
        # interpreter need not do the same.
        if like.dtype.kind in "iu" and (stored != values).any():
            raise NotVectorizable("combine function that overflows")
        return stored

    def shaped(self, values: Array) -> Array:
        return values.reshape(self._shape)
