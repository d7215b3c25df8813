"""Arithmetic on bfloat16, for which the stock interpreter takes the bits of a number as an integer.

Operands become float32, in which sums, differences, products and quotients of bfloat16 round once
more to the right bfloat16 (24 bits are at least twice 8 and 2). Casts stay those of the stock
interpreter, which cuts bits off where a GPU rounds.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from collections.abc import Callable
from typing import Any

import triton.language as tl
from triton.language.semantic import TritonSemantic


def _is_brain_float(value: Any) -> bool:
    return isinstance(value, tl.tensor) and value.dtype == tl.bfloat16


def _kept(name: str) -> Callable[..., Any]:
    """An operation whose result is of its operands' type."""
    stock = getattr(TritonSemantic, name)

    def operation(self: Any, lhs: Any, rhs: Any, *rest: Any) -> Any:
        wide = self.as_floats(lhs, rhs)
        found = stock(self, *wide, *rest)
        return found if wide[0] is lhs else self.as_brain_floats(found)

    return operation


def _compared(name: str) -> Callable[..., Any]:
    """An operation that answers by booleans."""
    stock = getattr(TritonSemantic, name)

    def operation(self: Any, lhs: Any, rhs: Any) -> Any:
        return stock(self, *self.as_floats(lhs, rhs))

    return operation


class BrainFloatSemantic(TritonSemantic):  # type: ignore[misc]
    """The stock semantics, with bfloat16 as numbers; `builder` is a `CheckedBuilder`."""

    add, sub, mul = (_kept(name) for name in ("add", "sub", "mul"))
    greater_than, greater_equal, less_than, less_equal, equal, not_equal = (
        _compared(name)
        for name in (
            "greater_than", "greater_equal", "less_than", "less_equal", "equal", "not_equal"
        )
    )  # fmt: skip

    def dot(self, lhs: Any, rhs: Any, *rest: Any) -> Any:
        """A product whose operands are float32 as soon as both are bfloat16."""
        if _is_brain_float(lhs) and _is_brain_float(rhs):
            lhs, rhs = self._as_float(lhs), self._as_float(rhs)
        return super().dot(lhs, rhs, *rest)

    def as_floats(self, lhs: Any, rhs: Any) -> tuple[Any, Any]:
        """Two operands as float32 where Triton would compute in bfloat16, else as they are."""
        if not (_is_brain_float(lhs) or _is_brain_float(rhs)):
            return lhs, rhs
        one, two = self.binary_op_type_checking_impl(lhs, rhs)
        if not _is_brain_float(one):
            return lhs, rhs
        return self._as_float(one), self._as_float(two)

    def as_brain_floats(self, value: Any) -> Any:
        """A float32 tensor rounded to bfloat16."""
        return self.tensor(
            self.builder.create_narrowed(value.handle), with_scalar(value.type, tl.bfloat16)
        )

    def _as_float(self, value: Any) -> Any:
        return self.tensor(
            self.builder.create_widened(value.handle), with_scalar(value.type, tl.float32)
        )


def with_scalar(kind: Any, scalar: Any) -> Any:
    """The same type, of other scalars."""
    return tl.block_type(scalar, kind.shape) if kind.is_block() else scalar
