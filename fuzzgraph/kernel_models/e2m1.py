"""Numbers of four bits (e2m1), two in a byte, the first of them in the lower half.

Source: OCP Microscaling Formats 1.0, 5.3.3. Rounding is to the nearest, between two to the even
code, and what is too large is the largest.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["LARGEST", "Bytes", "Floats", "bytes_of", "codes_of", "numbers_of"]

Bytes = npt.NDArray[np.uint8]
Floats = npt.NDArray[np.float64]

LARGEST = 6.0
_STEPS = np.array([0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, LARGEST])
"""What the three bits below the sign stand for."""
_BETWEEN = (_STEPS[1:] + _STEPS[:-1]) / 2
_SIGN = 8


def codes_of(numbers: Floats) -> Bytes:
    """Four bits of each number; zero keeps its sign."""
    size = np.abs(numbers)
    below, above = (np.searchsorted(_BETWEEN, size, side) for side in ("left", "right"))
    nearest = np.where(below % 2 == 0, below, above)
    return (nearest | np.where(np.signbit(numbers), _SIGN, 0)).astype(np.uint8)


def bytes_of(codes: Bytes) -> Bytes:
    """[..., D / 2] of [..., D]."""
    return (codes[..., 0::2] | codes[..., 1::2] << 4).astype(np.uint8)


def numbers_of(pairs: npt.NDArray[Any]) -> Floats:
    """[..., D] what bytes [..., D / 2] stand for."""
    pairs = pairs.astype(np.int64) & 0xFF
    codes = np.stack((pairs & 15, pairs >> 4), axis=-1)
    found: Floats = np.where(codes & _SIGN, -1.0, 1.0) * _STEPS[codes & 7]
    return found.reshape(*pairs.shape[:-1], 2 * pairs.shape[-1])
