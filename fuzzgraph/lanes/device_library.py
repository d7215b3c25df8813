"""The device's mathematical library, `libdevice`, which the stock interpreter does not have.

Values are numpy's in the same precision: within the few ulp that NVIDIA documents for its own, not
equal to them bit for bit.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import importlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Any

import numpy as np
import triton.language as tl
from triton.runtime import interpreter

_MODULES = ("libdevice", "cuda.libdevice", "hip.libdevice")
_FLOATS = (tl.float32, tl.float64)
Numpy = Callable[..., Any]


def _round(x: Any) -> Any:
    """Halves away from zero, where numpy takes the even one."""
    whole = np.trunc(x)
    return np.where(np.abs(x - whole) >= 0.5, whole + np.copysign(x.dtype.type(1), x), whole)


def _rsqrt(x: Any) -> Any:
    return x.dtype.type(1) / np.sqrt(x)


FUNCTIONS: Mapping[str, Numpy] = MappingProxyType(
    {
        **dict.fromkeys(("abs", "fabs"), np.abs),
        **dict.fromkeys(("rint", "nearbyint"), np.rint),
        **dict.fromkeys(("exp", "fast_expf"), np.exp),
        **dict.fromkeys(("log", "fast_logf"), np.log),
        **dict.fromkeys(("log2", "fast_log2f"), np.log2),
        **dict.fromkeys(("sqrt", "sqrt_rn"), np.sqrt),
        **dict.fromkeys(("pow", "fast_powf"), np.power),
        **dict.fromkeys(("div_rn", "fast_dividef"), np.divide),
        "add_rn": np.add,
        "sub_rn": np.subtract,
        "mul_rn": np.multiply,
        "round": _round,
        "rsqrt": _rsqrt,
        "fmin": np.fmin,
        "fmax": np.fmax,
        "atan2": np.arctan2,
        "asin": np.arcsin,
        "acos": np.arccos,
        "atan": np.arctan,
        **{
            name: getattr(np, name)
            for name in (
                "floor", "ceil", "trunc", "exp2", "expm1", "log1p", "log10", "tanh", "sinh", "cosh",
                "sin", "cos", "tan", "cbrt", "fmod", "copysign", "hypot",
            )
        },
    }
)  # fmt: skip
"""Function of float32 or float64 -> what computes it in the same type."""
TESTS: Mapping[str, Numpy] = MappingProxyType(
    {"isnan": np.isnan, "isinf": np.isinf, "finitef": np.isfinite, "signbit": np.signbit}
)
"""The same for functions that answer whether something holds."""


def device_library() -> Iterator[tuple[Any, str, Callable[..., Any]]]:
    """(module, name, what the interpreter calls in its place)."""
    for module in _MODULES:
        with suppress(ImportError):
            found = importlib.import_module(f"triton.language.extra.{module}")
            for name in (*FUNCTIONS, *TESTS):
                if name in vars(found):
                    yield found, name, _operation(name)


def _operation(name: str) -> Callable[..., Any]:
    def call(*args: Any, _semantic: Any = None, **_: Any) -> Any:
        semantic = interpreter.interpreter_semantic
        values = [semantic.to_tensor(arg) for arg in args]
        if len(values) == 2:
            values = list(semantic.broadcast_impl_value(*values))
        kind = values[0].type.scalar
        if kind not in _FLOATS or any(value.type.scalar != kind for value in values):
            given = ", ".join(str(value.type.scalar) for value in values)
            raise TypeError(f"libdevice.{name} takes fp32 or fp64 throughout; got {given}")
        handles = [value.handle for value in values]
        made = semantic.builder.create_device_call(name, *handles)
        of = tl.int1 if name in TESTS else kind
        shaped = values[0].type.is_block()
        return semantic.tensor(made, tl.block_type(of, values[0].type.shape) if shaped else of)

    return call


def computed(name: str, *values: Any) -> Any:
    """The values of a function; those of a test are bool."""
    with np.errstate(all="ignore"):
        return (FUNCTIONS.get(name) or TESTS[name])(*values)
