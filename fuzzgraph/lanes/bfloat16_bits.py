"""The bits of bfloat16, which numpy has no dtype for, from and to float32.

Scripts contain this as it is written, so it imports no Triton.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["narrowed", "widened"]

Array = npt.NDArray[Any]


def widened(bits: Array) -> Array:
    """The bits of bfloat16 as float32."""
    wide: Array = (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return wide


def narrowed(values: Array) -> Array:
    """The bits of the nearest bfloat16 to each float32, the even one of two."""
    # The view needs whole numbers side by side; a broadcast array has none.
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32).reshape(values.shape)
    odd = (bits >> np.uint32(16)) & np.uint32(1)
    nearest = (bits + np.uint32(0x7FFF) + odd) >> np.uint32(16)
    # Rounding would carry the lowest bits of a NaN into its sign.
    return np.where(np.isnan(values), np.uint32(0x7FC0), nearest).astype(np.uint16)
