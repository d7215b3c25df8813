"""The interpreter's operations over lanes: all programs of a group at once.

Every array has an additional first axis with one entry per program, or a single entry if all
programs agree. Each lane has the memory layout of the stock interpreter's array, because the order
in which numpy adds depends on the layout.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton._C.libtriton import interpreter
from triton.runtime.interpreter import TensorHandle

from fuzzgraph.lanes.access_log import Added
from fuzzgraph.lanes.blocks import LaneBlockPointer, LaneDescriptor
from fuzzgraph.lanes.checked import CheckedBuilder, as_mask, zero_where_off
from fuzzgraph.lanes.compat import DESCRIPTOR_HINTS, as_one_bit
from fuzzgraph.lanes.divergence import NotVectorizable, TooWide
from fuzzgraph.lanes.handles import Handle, LateHandle, tag_of
from fuzzgraph.lanes.polling import Polling
from fuzzgraph.lanes.small_floats import as_operand
from fuzzgraph.lanes.types import np_dtype, plain_sizes

Array = npt.NDArray[Any]

_ALL = slice(None)
# Atomics on integers whose final value is the same in any order. XCHG is not, and neither are
# floats, whose sums round.
_ORDER_FREE = ("ADD", "MIN", "UMIN", "MAX", "UMAX", "AND", "OR", "XOR")
_KEEP_WITH_ZERO = ("ADD", "FADD", "OR", "XOR")
"""Those that change nothing where the operand is 0: kernels wait by them, too."""


_BYTES: dict[str, int] = {}


def most_bytes(dtype: Any) -> int:
    """Bytes of an element of a scalar type."""
    found = _BYTES.get(dtype.name)
    if found is None:
        # Booleans have 1 bit in Triton and 8 in numpy.
        found = _BYTES[dtype.name] = max(dtype.primitive_bitwidth, 8) // 8
    return found


class LaneBuilder(CheckedBuilder):
    """All programs of a group at once.

    Attributes:
        ids: for each axis of the grid, int32 [lanes], or [1] where all agree.
        lanes: programs in the group.
        most: elements that an intermediate may have.
        polling: what tells whether they wait for others.
    """

    ids: tuple[Array, Array, Array]
    lanes: int
    most: int
    polling: Polling

    # ---- programs and shapes

    def create_get_program_id(self, axis: int) -> Any:
        return Handle(self.ids[axis], tl.int32)

    def _expand(self, shape: Sequence[int]) -> tuple[int, ...]:
        """The shape as plain integers.

        Raises:
            TooWide: a block of this shape for every lane would be too large.
        """
        sizes = plain_sizes(shape)
        elements = self.lanes
        for size in sizes:
            elements *= size
        if elements > self.most and self.lanes > 1:
            raise TooWide
        return sizes

    def create_make_range(self, ret_ty: Any, start: int, stop: int) -> Any:
        self._expand((stop - start,))
        return Handle(np.arange(start, stop, dtype=np.int32)[None], tl.int32)

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        shape = self._expand(ret_ty.shape)
        lanes = len(arg.data)
        # Not as a broadcast view: later results take over its layout, see the module's docstring.
        full = np.empty((lanes, *shape), np_dtype(arg.dtype))
        full[...] = arg.data.reshape((lanes,) + (1,) * len(shape))
        return Handle(full, arg.dtype.scalar, tag_of(arg))

    def create_unsplat(self, arg: Any) -> Any:
        first = arg.data.reshape(len(arg.data), -1)[:, 0].astype(np_dtype(arg.dtype))
        return Handle(first, arg.dtype.scalar, tag_of(arg))

    def create_broadcast(self, arg: Any, shape: Any) -> Any:
        data = arg.data
        full = (len(data), *self._expand(shape))
        if data.shape != full:
            data = np.broadcast_to(data, full)
        return Handle(data, arg.dtype.scalar, tag_of(arg))

    def create_expand_dims(self, arg: Any, axis: int) -> Any:
        data = arg.data
        # A negative axis counts from the rank of the result, which is `data.ndim`: the operand's
        # rank without the lane axis, and one more. The lane axis then comes before all others.
        ahead = (axis if axis >= 0 else axis + data.ndim) + 1
        return Handle(data[(_ALL,) * ahead + (None,)], arg.dtype.scalar, tag_of(arg))

    def create_reshape(self, arg: Any, shape: Any, allow_reorder: bool) -> Any:
        full = (len(arg.data), *[int(size) for size in shape])
        return Handle(arg.data.reshape(full), arg.dtype.scalar, tag_of(arg))

    def create_trans(self, arg: Any, perm: Any) -> Any:
        axes = [0, *[int(axis) + 1 for axis in perm]]
        return Handle(np.transpose(arg.data, axes), arg.dtype.scalar, tag_of(arg))

    def create_cat(self, lhs: Any, rhs: Any) -> Any:
        parts = _together(lhs.data, rhs.data)
        return Handle(np.concatenate(parts, axis=1), lhs.dtype.scalar)

    def create_join(self, lhs: Any, rhs: Any) -> Any:
        self._expand((*lhs.data.shape[1:], 2))
        return Handle(np.stack(_together(lhs.data, rhs.data), axis=-1), lhs.dtype.scalar)

    def create_gather(self, src: Any, indices: Any, axis: int) -> Any:
        axis = axis if axis < 0 else axis + 1  # a negative axis counts from the end, lanes or not
        values, places = _together(src.data, indices.data)
        found = np.take_along_axis(values, places, axis=axis)
        return Handle(found, src.dtype.scalar)

    # ---- arithmetic

    def binary_op(self, lhs: Any, rhs: Any, op: Any) -> Any:
        one, two, dtype = lhs.data, rhs.data, lhs.dtype.scalar
        if one.ndim != two.ndim:
            raise NotVectorizable("operands of different rank")
        output = as_one_bit(op, one, two)
        if output is None:
            output = op(one, two)
        # As the stock interpreter does: numpy promotes some results to a wider type.
        if output.itemsize > most_bytes(dtype) and not dtype.is_ptr():
            output = output.astype(np_dtype(dtype))
        return Handle(output, dtype)

    def create_idiv(self, lhs: Any, rhs: Any) -> Any:
        _same_rank(lhs.data, rhs.data)
        return super().create_idiv(lhs, rhs)

    def ternary_op(self, lhs: Any, rhs: Any, other: Any, op: Any) -> Any:
        _same_rank(lhs.data, rhs.data, other.data)
        return super().ternary_op(lhs, rhs, other, op)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        _same_rank(x.data, y.data, z.data)
        return super().create_fma(x, y, z)

    def create_dot(
        self, a: Any, b: Any, d: Any, input_precision: Any, max_num_imprecise_acc: Any
    ) -> Any:
        left, right = as_operand(a).data, as_operand(b).data
        self._expand(d.data.shape[1:])
        lanes = max(len(left), len(right))
        product = np.empty((lanes, *d.data.shape[1:]), d.data.dtype)
        # Lane by lane: numpy may add in another order when it multiplies a batch of matrices.
        for lane in range(lanes):
            product[lane] = np.matmul(
                left[lane if len(left) > 1 else 0],
                right[lane if len(right) > 1 else 0],
                dtype=d.data.dtype,
            )
        return Handle(product + d.data, d.dtype.scalar)

    def create_histogram(self, data: Any, bins: int, mask: Any) -> Any:
        values, on = data.data, None if mask is None else mask.data
        if on is not None:
            values, on = _together(values, on)
        counted = [
            super(LaneBuilder, self)
            .create_histogram(
                TensorHandle(values[lane], data.dtype),
                bins,
                None if on is None else TensorHandle(on[lane], tl.int1),
            )
            .data
            for lane in range(len(values))
        ]
        return Handle(np.stack(counted), tl.int32)

    # ---- memory

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, *hints: Any, **named_hints: Any
    ) -> Any:
        kind = ptrs.get_element_ty()
        on = None if mask is None else as_mask(mask)
        default = None if other is None else other.data
        if default is not None or on is not None:
            _same_rank(*(each for each in (ptrs.data, on, default) if each is not None))
        data = self.memory.load(tag_of(ptrs), ptrs.data, on, default, np_dtype(kind))
        return Handle(data, kind)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *hints: Any) -> Any:
        on = None if mask is None else as_mask(mask)
        _same_rank(ptrs.data, value.data, *(() if on is None else (on,)))
        self.memory.store(tag_of(ptrs), ptrs.data, value.data, on)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        way = self.ir_sem_to_interpreter_sem[sem]
        places, wanted, new = (self._each(part.data) for part in (ptr, cmp, val))

        def run(on: Array) -> Array:
            # Triton's C++ has no mask for this one, so only the reachable places are passed.
            found = wanted.copy()
            found[on] = interpreter.atomic_cas(places[on], wanted[on], new[on], way)
            return found

        on = np.ones(places.shape, np.bool_)
        return self._atomic("CAS", False, ptr, val, on, run, asks=bool((wanted == new).all()))

    def create_atomic_rmw(
        self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        operation = self.ir_rmw_op_to_interpreter_rmw_op[rmwOp]
        way = self.ir_sem_to_interpreter_sem[sem]
        places, values, memory = self._each(ptr.data), self._each(val.data), self.memory

        def run(on: Array) -> Array:
            found: Array = interpreter.atomic_rmw(operation, places, values, on, way)
            return zero_where_off(found, on)

        def again(at: Array, content: Array, places: Array, amounts: Array) -> None:
            memory.bounds.put(at, content, np.ones(at.shape, np.bool_))
            interpreter.atomic_rmw(operation, places, amounts, np.ones(places.shape, np.bool_), way)

        free = rmwOp.name in _ORDER_FREE and values.dtype.kind in "iu"
        on = self._each(as_mask(mask))
        adds = again if rmwOp.name == "FADD" else None
        asks = rmwOp.name in _KEEP_WITH_ZERO and not values.any()
        return self._atomic(rmwOp.name, free, ptr, val, on, run, adds, asks)

    def _atomic(
        self,
        name: str,
        free: bool,
        ptr: Any,
        val: Any,
        on: Array,
        run: Callable[[Array], Array],
        again: Any = None,
        asks: bool = False,
    ) -> Any:
        """An atomic of every lane, in the order of the programs; undone with its group."""
        # The order of these calls matters: mark the group as one that has written, check, log,
        # save the old content for an undo, and only then run the atomic.
        memory, size = self.memory, val.data.dtype.itemsize
        memory.active_lanes.stored = True
        tag, places = tag_of(ptr), self._each(ptr.data)
        on = memory.active_only(on, self.lanes, on.ndim)
        view = None if tag is None else tag.view
        reachable = memory.bounds.check(memory, "write", view, places, on, size)
        event = memory.log_atomic(view, places, reachable, size, name, free)
        memory._save(places, reachable, val.data.dtype)
        data = run(reachable)
        if again is not None and event is not None:
            event.added = Added(self._each(val.data)[reachable], data[reachable], again)

        # A kernel that looks at the old values depends on the order of the programs. One that
        # ignores them does not, if the operation is free of order.
        polling, seen = self.polling, False
        polling.carried_out(name, places, reachable)

        def asked() -> None:
            nonlocal seen
            if event is not None:
                event.used, event.polls = True, asks
            if not seen:
                seen = True
                polling.answered(name, places, reachable, data)

        return LateHandle(data, val.dtype.scalar, asked)

    def _each(self, data: Array) -> Array:
        """An array with an entry of its own for every lane."""
        full = np.empty((self.lanes, *data.shape[1:]), data.dtype)
        full[...] = data
        return full

    # ---- block pointers

    def create_make_block_ptr(
        self, base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any
    ) -> Any:
        self._expand(block_shape)
        return LaneBlockPointer(base, shape, strides, list(offsets), block_shape, order)

    def create_make_tensor_descriptor(
        self,
        base: Any,
        shape: Any,
        strides: Any,
        tensor_shape: Any,
        is_signed: bool,
        padding: Any = "zero",
    ) -> Any:
        self._expand(tensor_shape)
        descriptor = LaneDescriptor(base, shape, strides, tensor_shape, padding)
        descriptor.validate()
        return descriptor

    def create_descriptor_gather(self, desc: Any, x_offsets: Any, y_offset: Any, type: Any) -> Any:
        self._expand(type.shape)
        rows = [
            self.create_descriptor_load(desc, [row, y_offset], *DESCRIPTOR_HINTS).data[:, 0]
            for row in _rows(x_offsets)
        ]
        return Handle(np.stack(_together(*rows), axis=1), desc.base.dtype.element_ty)

    def create_descriptor_scatter(
        self, desc: Any, value: Any, x_offsets: Any, y_offset: Any
    ) -> None:
        for index, row in enumerate(_rows(x_offsets)):
            part = Handle(value.data[:, index : index + 1], value.dtype)
            self.create_descriptor_store(desc, part, [row, y_offset])

    # ---- operations that have no meaning for all programs at once, or that the race check and the
    # ---- promise of equal bytes do not cover

    def create_atomic_load(self, *args: Any) -> Any:
        raise NotVectorizable("atomic_load")

    def create_atomic_store(self, *args: Any) -> Any:
        raise NotVectorizable("atomic_store")

    def create_atomic_poll(self, *args: Any) -> Any:
        raise NotVectorizable("atomic_poll")

    def create_dot_scaled(self, *args: Any) -> Any:
        raise NotVectorizable("dot_scaled")

    def create_print(self, prefix: Any, hex: Any, values: Any, isSigned: Any) -> Any:
        raise NotVectorizable("device_print")


@cache
def lane_builder() -> LaneBuilder:
    """The builder of this process; a launch sets its grid, its group and its memory."""
    return LaneBuilder()


def _same_rank(first: Array, *others: Array) -> None:
    """Refuse operands of different rank."""
    # Numpy aligns shapes by their last axes, so that one operand's lanes would meet the other's
    # elements.
    for other in others:
        if other.ndim != first.ndim:
            raise NotVectorizable("operands of different rank")


def _together(*parts: Array) -> list[Array]:
    """The arrays with equally many lanes each, as copies with the lanes outermost."""
    lanes = max(len(part) for part in parts)
    return [part if len(part) == lanes else np.repeat(part, lanes, axis=0) for part in parts]


def _rows(offsets: Any) -> list[Any]:
    """Each entry of a one-dimensional tensor as a scalar."""
    return [Handle(offsets.data[:, row], tl.int32) for row in range(offsets.data.shape[1])]
