"""Floats of 8 bits, to and from others, as a device converts them.

The stock interpreter adds a bit to the fraction where it rounds, and loses it where the fraction
is full: 0.4998 becomes 0.25 in e4m3. It also takes NaN for a number.
"""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
import triton.language as tl

__all__ = ["as_floats", "as_small", "is_small"]

Array = npt.NDArray[Any]

_DTYPES = {
    tl.float8e4nv: torch.float8_e4m3fn,
    tl.float8e5: torch.float8_e5m2,
    tl.float8e4b8: torch.float8_e4m3fnuz,
    tl.float8e5b16: torch.float8_e5m2fnuz,
}
_SATURATE = (tl.float8e4nv, tl.float8e5)
"""Casts to these give the largest number for one that is too large, infinity too.

Source: PTX ISA, `cvt` with `.satfinite`, as Triton emits it for NVIDIA."""


def is_small(kind: Any) -> bool:
    """Whether a scalar type has 8 bits."""
    return kind in _DTYPES


def as_floats(bits: Array, kind: Any) -> Array:
    """The numbers, in float32, of uint8 that hold them."""
    return _numbers(kind)[bits]


@cache
def _numbers(kind: Any) -> Array:
    """The number of each of 256 codes."""
    found: Array = torch.arange(256, dtype=torch.uint8).view(_DTYPES[kind]).float().numpy()
    return found


def as_small(values: Array, kind: Any) -> Array:
    """uint8 that hold the nearest numbers, the even one of two."""
    given = torch.from_numpy(np.ascontiguousarray(values, np.float32))
    if kind in _SATURATE:
        most = torch.finfo(_DTYPES[kind]).max
        given = given.clamp(-most, most)
    found: Array = given.to(_DTYPES[kind]).view(torch.uint8).numpy()
    return found.reshape(values.shape)
