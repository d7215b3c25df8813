"""Floats of 8 bits in Triton's interpreter, converted as devices convert them.

The stock interpreter adds a bit to the fraction where it rounds, and loses it where the fraction
is full: 0.4998 becomes 0.25 in e4m3. It also takes NaN for a number.

Scripts contain this as it is written, so it imports Triton where it is called.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.lanes.bfloat16_bits import narrowed, widened

__all__ = ["as_floats", "as_operand", "as_small", "is_small", "round_small_floats"]

Array = npt.NDArray[Any]

_SMALL_FLOATS = {
    "fp8e4nv": torch.float8_e4m3fn,
    "fp8e5": torch.float8_e5m2,
    "fp8e4b8": torch.float8_e4m3fnuz,
    "fp8e5b16": torch.float8_e5m2fnuz,
}
_SATURATE = ("fp8e4nv", "fp8e5")
"""Casts to these give the largest number for one that is too large, infinity too.

Source: PTX ISA, `cvt` with `.satfinite`, as Triton emits it for NVIDIA."""


def is_small(kind: Any) -> bool:
    """Whether a scalar type has 8 bits."""
    return kind.name in _SMALL_FLOATS


def as_floats(bits: Array, kind: Any) -> Array:
    """The numbers, in float32, of uint8 that hold them."""
    return _numbers(kind.name)[bits]


@cache
def _numbers(name: str) -> Array:
    """The number of each of 256 codes."""
    codes = torch.arange(256, dtype=torch.uint8)
    found: Array = codes.view(_SMALL_FLOATS[name]).float().numpy()
    return found


def as_small(values: Array, kind: Any) -> Array:
    """uint8 that hold the nearest numbers, the even one of two."""
    dtype = _SMALL_FLOATS[kind.name]
    given = torch.from_numpy(np.ascontiguousarray(values, np.float32))
    if kind.name in _SATURATE:
        most = torch.finfo(dtype).max
        given = given.clamp(-most, most)
    found: Array = given.to(dtype).view(torch.uint8).numpy()
    return found.reshape(values.shape)


def round_small_floats() -> None:
    """Have Triton's interpreter convert floats of 8 bits as devices do, from now on."""
    from triton.runtime.interpreter import InterpreterBuilder

    stock: Any = InterpreterBuilder
    if not hasattr(stock.create_fp_to_fp, "__wrapped__"):
        stock.create_fp_to_fp = _converting(stock.create_fp_to_fp)
        stock.create_dot = _multiplying(stock.create_dot)


def _converting(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's cast between floats."""
    from triton._C.libtriton import ir
    from triton.runtime.interpreter import TensorHandle

    def create_fp_to_fp(self: Any, src: Any, dst_type: Any, rounding_mode: Any) -> Any:
        before, after = src.dtype.scalar, dst_type.scalar
        to_nearest = rounding_mode in (None, ir.ROUNDING_MODE.RTNE)
        if not (is_small(before) or is_small(after)) or not to_nearest:
            return stock(self, src, dst_type, rounding_mode)
        values = _as_float32(src.data, before)
        data = as_small(values, after) if is_small(after) else _as_bits(values, after)
        return TensorHandle(data, after)

    create_fp_to_fp.__wrapped__ = stock  # type: ignore[attr-defined]
    return create_fp_to_fp


def _as_float32(data: Array, kind: Any) -> Array:
    """Numbers of a float type; those of float64 rounded."""
    if is_small(kind):
        return as_floats(data, kind)
    return widened(data) if kind.name == "bf16" else data.astype(np.float32)


def _as_bits(values: Array, kind: Any) -> Array:
    """float32 as the interpreter holds numbers of a wider type than 8 bits."""
    if kind.name == "bf16":
        return narrowed(values)
    return values.astype(f"float{kind.primitive_bitwidth}")


def _multiplying(stock: Callable[..., Any]) -> Callable[..., Any]:
    """The interpreter's product of tiles, which takes operands of 8 bits apart by that cast."""

    def create_dot(self: Any, a: Any, b: Any, *more: Any) -> Any:
        return stock(self, as_operand(a), as_operand(b), *more)

    return create_dot


def as_operand(value: Any) -> Any:
    """An operand of a product: floats of 8 bits in float16, as the stock interpreter has them."""
    kind = value.dtype.scalar
    if not is_small(kind):
        return value
    import triton.language as tl
    from triton.runtime.interpreter import TensorHandle

    return TensorHandle(as_floats(value.data, kind).astype(np.float16), tl.float16)
