"""Constants of a module beside tensors, as in `WIDTH + places` where WIDTH is a `tl.constexpr`.

As compiled, a tensor comes out. The interpreter makes a constant of that tensor, which cannot be
indexed.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import triton.language as tl

_BINARY = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "and", "or", "xor", "lshift", "rshift",
    "lt", "le", "gt", "ge", "eq", "ne",
)  # fmt: skip


def beside_tensors() -> Iterator[tuple[str, Any]]:
    """(name, operator of a constant that leaves it to a tensor on its right to compute)."""
    for name in (f"__{each}__" for each in _BINARY):
        if name in vars(tl.constexpr):
            yield name, _left_to_tensors(vars(tl.constexpr)[name])


def _left_to_tensors(function: Any) -> Any:
    def call(constant: Any, other: Any) -> Any:
        return NotImplemented if type(other) is tl.tensor else function(constant, other)

    return call
