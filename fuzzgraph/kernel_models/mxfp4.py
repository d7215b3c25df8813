"""Numbers as FP4 (e2m1), two in a byte, with a power of two for each 32 of a row.

Source: sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/fp4_indexer_rope.cuh: numbers are rounded to FP4
twice, each time to the nearest and to the even one of two, by scales whose least values differ.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.e2m1 import LARGEST, Floats, bytes_of, codes_of, numbers_of
from fuzzgraph.kernel_models.memory import as_numbers

__all__ = ["FP4_BLOCK", "FP4_SCALE_BYTES", "fp4_pages", "packed", "scale_bytes", "fp4_numbers"]

FP4_BLOCK = 32
"""Numbers with one scale."""
FP4_SCALE_BYTES = 4
"""Of a row of 128 numbers."""
_LEAST_ROUNDED = 6 * 2.0**-126
"""A block's largest number counts as this at least, as it is rounded first."""
_LEAST_PACKED = 1e-4
"""The same of its sixth, as it is packed."""
_MINUS_ZERO = 8
_BIAS = 127
"""Of an exponent's byte (ue8m0)."""


def packed(rows: Floats) -> tuple[npt.NDArray[np.uint8], npt.NDArray[np.uint8]]:
    """(uint8 [..., D / 2] numbers, the even column in the lower half of a byte; [..., D / 32] the
    exponents of their scales)."""
    *outer, width = rows.shape
    blocks = rows.reshape(*outer, width // FP4_BLOCK, FP4_BLOCK)
    largest = np.abs(blocks).max(-1, keepdims=True)
    first = _power(np.maximum(largest, _LEAST_ROUNDED) / LARGEST)
    blocks = _rounded(blocks / first) * first
    exponents = np.log2(_power(np.maximum(np.abs(blocks).max(-1) / LARGEST, _LEAST_PACKED)))
    codes = codes_of(blocks / 2.0 ** exponents[..., None])
    codes[codes == _MINUS_ZERO] = 0
    return bytes_of(codes.reshape(*outer, width)), (exponents + _BIAS).astype(np.uint8)


def fp4_numbers(numbers: npt.NDArray[Any], exponents: npt.NDArray[Any]) -> Floats:
    """[..., D] what such bytes stand for."""
    values = numbers_of(numbers)
    *outer, width = values.shape
    blocks = values.reshape(*outer, width // FP4_BLOCK, FP4_BLOCK)
    scales = 2.0 ** (exponents.astype(np.float64) - _BIAS)
    found: Floats = (blocks * scales[..., None]).reshape(*outer, width)
    return found


def fp4_pages(cache: torch.Tensor, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The two parts of each page of a cache: its rows, and behind all of these their scales.

    Args:
        cache: uint8 [pages, page_size * (D / 2 + 4)].

    Returns:
        (uint8 [pages, page_size, D / 2], uint8 [pages, page_size, 4]), both of the cache's memory.
    """
    width = cache.shape[1] // page_size - FP4_SCALE_BYTES
    rows = cache[:, : page_size * width].unflatten(1, (page_size, width))
    return rows, cache[:, page_size * width :].unflatten(1, (page_size, FP4_SCALE_BYTES))


def scale_bytes(words: torch.Tensor) -> npt.NDArray[np.uint8]:
    """uint8 [..., 4] the exponents in words of int32, the first in the lowest byte."""
    numbers = np.ascontiguousarray(as_numbers(words).astype(np.int32))
    return numbers.view(np.uint8).reshape(*numbers.shape, FP4_SCALE_BYTES)


def _power(numbers: Floats) -> Floats:
    """The least power of two that is not smaller."""
    found: Floats = 2.0 ** np.ceil(np.log2(numbers))
    return found


def _rounded(numbers: Floats) -> Floats:
    codes = codes_of(numbers)
    rounded: Floats = numbers_of(bytes_of(codes))
    return rounded
