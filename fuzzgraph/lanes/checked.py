"""The interpreter's operations one program at a time, with every access checked.

For launches that the lanes cannot run: pointers remember their argument, loads and stores go
through `LaneMemory`, everything else is left to the stock interpreter.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from math import gcd
from typing import Any

import numpy as np
import numpy.typing as npt
import triton.language as tl
from triton.runtime.interpreter import InterpreterBuilder, InterpreterOptions

from fuzzgraph.lanes.bfloat16_bits import narrowed, widened
from fuzzgraph.lanes.blocks import BlockPointer, Descriptor
from fuzzgraph.lanes.device_library import TESTS, computed
from fuzzgraph.lanes.handles import Handle, Tag, pointed, tag_of
from fuzzgraph.lanes.memory import LaneMemory
from fuzzgraph.lanes.types import np_dtype

Array = npt.NDArray[Any]


_CONVERTED = (tl.bfloat16, tl.float32)


def is_converted(before: Any, after: Any) -> bool:
    """Whether a cast between two types is more than numpy's."""
    return before.scalar in _CONVERTED and after.scalar in _CONVERTED


def pointed_bytes(kind: Any) -> int:
    """Bytes of an element that pointers of a type lead to."""
    # Booleans have 1 bit in Triton and take a byte in memory.
    bits: int = pointed(kind).primitive_bitwidth
    return max(1, bits // 8)


class CheckedBuilder(InterpreterBuilder):  # type: ignore[misc]
    """The stock operations, with every access checked."""

    memory: LaneMemory

    def __init__(self) -> None:
        super().__init__()
        # The interpreter computes its overflow check and then drops the result.
        self.options = InterpreterOptions(sanitize_overflow=False)

    # ---- what the stock builder lacks

    def create_device_call(self, name: str, *args: Any) -> Any:
        """A function of the device's library; see `device_library`."""
        kind = tl.int1 if name in TESTS else args[0].dtype.scalar
        return Handle(computed(name, *(arg.data for arg in args)), kind)

    def get_bf16(self, value: float) -> Any:
        return Handle(narrowed(np.array([value], np.float32)), tl.bfloat16)

    def create_widened(self, arg: Any) -> Any:
        """Numbers of bfloat16 as float32."""
        return Handle(widened(arg.data), tl.float32)

    def create_narrowed(self, arg: Any) -> Any:
        """Numbers of float32 as the nearest bfloat16."""
        return Handle(narrowed(arg.data), tl.bfloat16)

    def create_fma(self, x: Any, y: Any, z: Any) -> Any:
        if z.dtype.scalar != tl.bfloat16:
            return super().create_fma(x, y, z)
        one, two, three = (widened(each.data) for each in (x, y, z))
        return Handle(narrowed(one * two + three), tl.bfloat16)

    # ---- pointers keep their provenance

    def create_addptr(self, ptr: Any, offset: Any) -> Any:
        width = pointed_bytes(ptr.dtype)
        tag = tag_of(ptr)
        # Whatever the offset, the sum is a multiple of both; see `Tag.grain`.
        if tag is not None and tag.grain % width:
            tag = Tag(tag.view, gcd(tag.grain, width))
        moved = offset.data.astype(np.uint64)
        if width > 1:
            moved *= np.uint64(width)
        return Handle(ptr.data + moved, ptr.dtype, tag)

    def cast_impl(self, src: Any, dst_type: Any) -> Any:
        if is_converted(src.dtype, dst_type):
            return super().cast_impl(src, dst_type)
        return Handle(src.data.astype(np_dtype(dst_type)), dst_type.scalar)

    def create_int_to_ptr(self, src: Any, dst_type: Any) -> Any:
        return self.create_bitcast(src, dst_type)

    def create_ptr_to_int(self, src: Any, dst_type: Any) -> Any:
        return Handle(src.data.view(np_dtype(dst_type)), dst_type.scalar)

    def create_bitcast(self, src: Any, dst_type: Any) -> Any:
        return Handle(src.data.view(np_dtype(dst_type)), dst_type.scalar, tag_of(src))

    def create_select(self, cond: Any, lhs: Any, rhs: Any) -> Any:
        chosen = super().create_select(cond, lhs, rhs)
        # Pointers into different arguments have no common view: checked like loaded ones.
        one, two = tag_of(lhs), tag_of(rhs)
        if one is not None and two is not None and one.view is two.view:
            return Handle(chosen.data, chosen.dtype, Tag(one.view, gcd(one.grain, two.grain)))
        return chosen

    def create_splat(self, ret_ty: Any, arg: Any) -> Any:
        return _tagged(super().create_splat(ret_ty, arg), arg)

    def create_unsplat(self, arg: Any) -> Any:
        return _tagged(super().create_unsplat(arg), arg)

    def create_broadcast(self, arg: Any, shape: Any) -> Any:
        return Handle(np.broadcast_to(arg.data, shape), arg.dtype.scalar, tag_of(arg))

    def create_expand_dims(self, arg: Any, axis: int) -> Any:
        return Handle(np.expand_dims(arg.data, axis), arg.dtype.scalar, tag_of(arg))

    def create_reshape(self, arg: Any, shape: Any, allow_reorder: bool) -> Any:
        return Handle(arg.data.reshape(shape), arg.dtype.scalar, tag_of(arg))

    def create_trans(self, arg: Any, perm: Any) -> Any:
        return Handle(np.transpose(arg.data, perm), arg.dtype.scalar, tag_of(arg))

    # ---- block pointers

    def create_make_block_ptr(
        self, base: Any, shape: Any, strides: Any, offsets: Any, block_shape: Any, order: Any
    ) -> Any:
        # Cloned as the stock interpreter does: advancing a block must not move the kernel's
        # offsets.
        own = [offset.clone() for offset in offsets]
        return BlockPointer(base, shape, strides, own, block_shape, order)

    def create_advance(self, ptr: Any, offsets: Any) -> Any:
        if len(ptr.offsets) != len(offsets):
            raise ValueError("len(ptr.offsets) != len(offsets)")
        moved = [
            Handle(old.data + by.data, old.dtype)
            for old, by in zip(ptr.offsets, offsets, strict=True)
        ]
        return type(ptr)(ptr.base, ptr.shape, ptr.strides, moved, ptr.block_shape, ptr.order)

    def create_make_tensor_descriptor(
        self,
        base: Any,
        shape: Any,
        strides: Any,
        tensor_shape: Any,
        is_signed: bool,
        padding: Any = "zero",
    ) -> Any:
        descriptor = Descriptor(base, shape, strides, tensor_shape, padding)
        descriptor.validate()
        return descriptor

    # ---- memory

    # Hints (cache policy, eviction, volatile) have no effect in an interpreter.

    def create_load(self, ptr: Any, *hints: Any) -> Any:
        return self.create_masked_load(ptr, None, None)

    def create_store(self, ptr: Any, val: Any, *hints: Any) -> Any:
        return self.create_masked_store(ptr, val, None)

    def create_masked_load(
        self, ptrs: Any, mask: Any, other: Any, *hints: Any, **named_hints: Any
    ) -> Any:
        kind = ptrs.get_element_ty()
        data = self.memory.load(
            tag_of(ptrs),
            ptrs.data[None],
            None if mask is None else as_mask(mask)[None],
            None if other is None else other.data[None],
            np_dtype(kind),
        )
        return Handle(data[0], kind)

    def create_masked_store(self, ptrs: Any, value: Any, mask: Any, *hints: Any) -> Any:
        on = None if mask is None else as_mask(mask)[None]
        self.memory.store(tag_of(ptrs), ptrs.data[None], value.data[None], on)

    def create_atomic_cas(self, ptr: Any, cmp: Any, val: Any, sem: Any, scope: Any) -> Any:
        self._check_atomic(ptr, None, cmp.data.dtype.itemsize)
        return super().create_atomic_cas(ptr, cmp, val, sem, scope)

    def create_atomic_rmw(
        self, rmwOp: Any, ptr: Any, val: Any, mask: Any, sem: Any, scope: Any
    ) -> Any:
        if mask.data.shape != ptr.data.shape:
            return super().create_atomic_rmw(rmwOp, ptr, val, mask, sem, scope)
        on = self._check_atomic(ptr, mask, val.data.dtype.itemsize)
        old = super().create_atomic_rmw(rmwOp, ptr, val, Handle(on, tl.int1), sem, scope)
        zero_where_off(old.data, on)
        return old

    def _check_atomic(self, ptr: Any, mask: Any, size: int) -> Array:
        """Where an atomic may be carried out: bool, of the pointers' shape."""
        on = np.ones(ptr.data.shape, np.bool_) if mask is None else as_mask(mask)
        tag = tag_of(ptr)
        view = None if tag is None else tag.view
        memory = self.memory
        reachable: Array = memory.bounds.check(
            memory, "write", view, ptr.data[None], on[None], size
        )[0]
        # Compare-and-swap takes no mask: nothing but an error keeps the stock operation from
        # following the address.
        if mask is None and not reachable.all():
            raise ValueError("atomic_cas outside of every known memory")
        return reachable


def _tagged(made: Any, source: Any) -> Any:
    tag = tag_of(source)
    return made if tag is None else Handle(made.data, made.dtype, tag)


def zero_where_off(old: Array, on: Array) -> Array:
    """What an atomic returned, 0 where it was not carried out.

    There Triton's own code leaves the bytes that the allocator gave, another value in each run. On
    a device they are undefined, too.
    """
    np.copyto(old, 0, where=~on)
    return old


def as_mask(mask: Any) -> Array:
    """The mask of a load or a store as booleans; block pointers give a bare array."""
    data: Array = mask if isinstance(mask, np.ndarray) else mask.data
    return data if data.dtype == np.bool_ else data.astype(np.bool_)
