"""Triton's semantics for lanes, where those of the stock interpreter do not work or are slow.

Constants may differ between lanes, and a scalar mask must not split them. Two operands of one
type, by far the most frequent case, skip type rules that would change nothing.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import numpy as np
import triton.language as tl

from fuzzgraph.lanes.brain_floats import BrainFloatSemantic
from fuzzgraph.lanes.compat import is_plain_load, is_plain_store
from fuzzgraph.lanes.divergence import NotVectorizable
from fuzzgraph.lanes.handles import Handle
from fuzzgraph.lanes.integers import LaneInt
from fuzzgraph.lanes.traced import traced
from fuzzgraph.lanes.types import np_dtype, wider

_INTEGERS = frozenset(
    ("int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64", "fp32", "fp64")
)
_FLOATS = ("fp32", "fp64")
_SIGNED = ("int32", "int64", "int16", "int8")
# Types that an operation on two operands of the same type keeps. Not int1 and not the small floats,
# for which some operations have other rules.
_SETTLED = frozenset((*_FLOATS, *_SIGNED, "uint8", "uint16", "uint32", "uint64"))
# The Python integers that take the type of the other operand without any further rule.
_RANGES = {
    "int8": (-(2**7), 2**7 - 1),
    "int16": (-(2**15), 2**15 - 1),
    "int32": (-(2**31), 2**31 - 1),
    "int64": (-(2**63), 2**63 - 1),
    "fp32": (-(2**63), 2**63 - 1),
    "fp64": (-(2**63), 2**63 - 1),
}


class CheckedSemantic(BrainFloatSemantic):
    """The stock semantics, with a short way for operands of one type."""

    def binary_op_type_checking_impl(
        self,
        lhs: Any,
        rhs: Any,
        allow_lhs_ptr: bool = False,
        allow_rhs_ptr: bool = False,
        arithmetic_check: bool = True,
        div_or_mod: bool = False,
    ) -> tuple[Any, Any]:
        if type(lhs) is tl.tensor and type(rhs) is tl.tensor:
            name = lhs.dtype.name
            if name in _SETTLED and name == rhs.dtype.name:
                same: tuple[Any, Any] = self.broadcast_impl_value(lhs, rhs)
                return same
        elif type(lhs) is tl.tensor and _fits(rhs, lhs.dtype):
            return lhs, self._like(rhs, lhs.type)
        elif type(rhs) is tl.tensor and _fits(lhs, rhs.dtype):
            return self._like(lhs, rhs.type), rhs
        checked: tuple[Any, Any] = super().binary_op_type_checking_impl(
            lhs, rhs, allow_lhs_ptr, allow_rhs_ptr, arithmetic_check, div_or_mod
        )
        return checked

    def _like(self, number: Any, kind: Any) -> Any:
        """A Python number as a tensor of the other operand's type and shape."""
        scalar = self.scalar_constant(number, kind.scalar)
        if not kind.is_block():
            return scalar
        return self.tensor(self.builder.create_splat(kind, scalar.handle), kind)

    def broadcast_impl_value(self, lhs: Any, rhs: Any) -> Any:
        one, two = lhs.type, rhs.type
        if type(one) is not tl.block_type or type(two) is not tl.block_type:
            return super().broadcast_impl_value(lhs, rhs)
        # Block types of one shape share the shape object, see `types`.
        if one.shape is two.shape:
            return lhs, rhs
        shape = wider(one.shape, two.shape)
        if shape is None:
            return super().broadcast_impl_value(lhs, rhs)
        return self._widened(lhs, shape), self._widened(rhs, shape)

    def _widened(self, tensor: Any, shape: Any) -> Any:
        if tensor.type.shape is shape:
            return tensor
        kind = tl.block_type(tensor.type.element_ty, shape)
        return self.tensor(self.builder.create_broadcast(tensor.handle, shape), kind)

    def add(self, input: Any, other: Any, sanitize_overflow: bool) -> Any:
        both = type(input) is tl.tensor and type(other) is tl.tensor
        if both and input.dtype.is_ptr() and other.dtype.name in _SIGNED:
            input, other = self.broadcast_impl_value(input, other)
            return self.tensor(self.builder.create_addptr(input.handle, other.handle), input.type)
        # False: the interpreter would compute an overflow check and drop its result.
        return super().add(input, other, False)

    def sub(self, input: Any, other: Any, sanitize_overflow: bool) -> Any:
        return super().sub(input, other, False)

    def mul(self, input: Any, other: Any, sanitize_overflow: bool) -> Any:
        return super().mul(input, other, False)


class LaneSemantic(CheckedSemantic):
    """The semantics over lanes: integers and scalar masks may differ between them."""

    def to_tensor(self, x: Any, check_type: bool = True) -> Any:
        value = x.value if isinstance(x, tl.constexpr) else x
        if isinstance(value, LaneInt):
            return self.scalar_constant(value, tl.int32)  # a LaneInt is within 32 bits
        return super().to_tensor(x, check_type)

    def to_tensor_type(self, x: Any) -> Any:
        return tl.int32 if isinstance(x, LaneInt) else super().to_tensor_type(x)

    def scalar_constant(self, value: Any, dtype: Any) -> Any:
        if not isinstance(value, LaneInt):
            return super().scalar_constant(value, dtype)
        if dtype is None or dtype.name not in _INTEGERS:
            raise NotVectorizable(f"loop variable as {dtype}")
        return self.tensor(_as_handle(value, dtype), dtype)

    def _convert_elem_to_ir_value(self, elem: Any, require_i64: bool) -> Any:
        if isinstance(elem, LaneInt):
            kind = tl.int64 if require_i64 else tl.int32
            return self.scalar_constant(elem, kind).handle
        return super()._convert_elem_to_ir_value(elem, require_i64)

    def load(self, ptr: Any, mask: Any, other: Any, *hints: Any) -> Any:
        """A load whose scalar mask may differ between lanes."""
        # The stock semantics turns a scalar mask into a Python bool, which would split the lanes.
        if not _is_scalar(ptr, mask) or (other is not None and other.type.is_block()):
            return super().load(ptr, mask, other, *hints)
        if not is_plain_load(self, hints):
            return super().load(ptr, mask, other, *hints)
        element = ptr.type.element_ty
        default = None if other is None else _no_negative_zero(self.cast(other, element).handle)
        loaded = self.builder.create_masked_load(ptr.handle, mask.handle, default)
        return self.tensor(loaded, element)

    def store(self, ptr: Any, val: Any, mask: Any, *hints: Any) -> Any:
        if not _is_scalar(ptr, mask) or val.type.is_block() or ptr.type.is_const():
            return super().store(ptr, val, mask, *hints)
        if not is_plain_store(self, hints):
            return super().store(ptr, val, mask, *hints)
        val = self.cast(val, ptr.type.element_ty)
        if not mask.type.scalar.is_bool():
            raise ValueError("Mask must have boolean scalar type")
        self.builder.create_masked_store(ptr.handle, val.handle, mask.handle)
        return self.tensor(None, tl.void)


@traced
def _as_handle(value: LaneInt, dtype: Any) -> Any:
    return Handle(value.lanes.astype(np_dtype(dtype)), dtype)


def _is_scalar(ptr: Any, mask: Any) -> bool:
    """Whether this is a masked access to a single element."""
    if mask is None or not ptr.type.is_ptr() or mask.type.is_block():
        return False
    # Triton accesses booleans as bytes, with casts around: left to the stock semantics.
    return not ptr.type.element_ty.is_block() and ptr.type.element_ty != tl.int1


def _fits(number: Any, scalar: Any) -> bool:
    """Whether a Python number simply takes the type `scalar` of the other operand."""
    if type(number) is int:
        bounds = _RANGES.get(scalar.name)
        return bounds is not None and bounds[0] <= number <= bounds[1]
    return type(number) is float and scalar.name in _FLOATS


@traced
def _no_negative_zero(handle: Any) -> Any:
    """The default of a load with -0.0 replaced by 0.0."""
    # The stock interpreter takes a scalar default that is false as none, and so gives 0.0.
    data = handle.data
    return Handle(np.where(data.astype(np.bool_), data, data.dtype.type(0)), handle.dtype)
