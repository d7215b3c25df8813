"""The operands of a trace: what changes between runs, what does not, and lists of both."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Sequence
from types import BuiltinFunctionType, FunctionType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter
from triton.runtime.interpreter import TensorDescHandle, TensorHandle

from fuzzgraph.lanes.compat import BlockPointerHandle
from fuzzgraph.lanes.types import tensor_of

PLAIN = (int, float, str, bool, type(None))
BLOCKS = (BlockPointerHandle, TensorDescHandle)
"""Handles of block pointers and descriptors."""


class Ref:
    """An operand: the value at an index of the playback's list."""

    __slots__ = ("index", "kind")

    def __init__(self, index: int, kind: Any = None) -> None:
        self.index = index
        self.kind = kind
        """The type of a tensor to be made around the handle; None for the handle itself."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Ref) and (self.index, self.kind) == (other.index, other.kind)

    def __hash__(self) -> int:
        return hash(self.index)

    def among(self, values: list[Any]) -> Any:
        value = values[self.index]
        return value if self.kind is None else tensor_of(value, self.kind)


class Constant:
    """An operand that is the same in every run."""

    __slots__ = ("value",)

    def __init__(self, value: Any) -> None:
        self.value = value

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Constant) and _equal(self.value, other.value)

    def __hash__(self) -> int:
        return 0

    def among(self, values: list[Any]) -> Any:
        return self.value


class Several:
    """A list or tuple of operands."""

    __slots__ = ("kind", "parts")

    def __init__(self, kind: Any, parts: Sequence[Any]) -> None:
        self.kind = kind
        self.parts = parts

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Several) and (self.kind, list(self.parts)) == (
            other.kind, list(other.parts)
        )  # fmt: skip

    def __hash__(self) -> int:
        return len(self.parts)

    def among(self, values: list[Any]) -> Any:
        return self.kind([each.among(values) for each in self.parts])


def changes(operand: Any) -> bool:
    """Whether an operand may be another one in the next run."""
    return not isinstance(operand, Constant)


def _equal(one: Any, two: Any) -> bool:
    """Whether two constants are the same, down to the bits of numbers."""
    if one is two:
        return True
    if type(one) is not type(two):
        return False
    if isinstance(one, float):
        return bool(one.hex() == two.hex())
    if isinstance(one, TensorHandle):
        return _same_handle(one, two)
    if isinstance(one, tl.tensor):
        return bool(one.type == two.type) and _same_handle(one.handle, two.handle)
    if isinstance(one, (list, tuple)):
        return len(one) == len(two) and all(map(_equal, one, two))
    if isinstance(one, tl.core.tuple):
        return bool(_equal(one.values, two.values))
    if isinstance(one, tl.constexpr):
        return bool(_equal(one.value, two.value))
    if isinstance(one, BLOCKS):
        return False
    return bool(one == two) or _same_attributes(one, two)


def _same_attributes(one: Any, two: Any) -> bool:
    """Whether two objects without an equality of their own, such as hints on caches, are alike."""
    own: Any = type(one).__eq__
    if own is not object.__eq__ or not hasattr(one, "__dict__"):
        return False
    return _equal(list(vars(one).items()), list(vars(two).items()))


def _same_handle(one: Any, two: Any) -> bool:
    """Whether two folded results are equal: same dtype, same bytes."""
    a, b = one.data, two.data
    return bool(one.dtype == two.dtype and a.dtype == b.dtype and a.shape == b.shape) and bool(
        a.tobytes() == b.tobytes()
    )


def is_constant(value: Any) -> bool:
    """Whether an operand is plain data, a type, or a function: nothing that a run makes."""
    if isinstance(value, tl.constexpr):
        return is_constant(value.value)
    kinds = (*PLAIN, tl.dtype, np.generic, np.ufunc, type, FunctionType, BuiltinFunctionType)
    if isinstance(value, kinds) or value is NotImplemented:
        return True
    if isinstance(value, interpreter.InterpretedFunction):
        return True
    return type(value).__module__.startswith("triton._C")  # enumerations
