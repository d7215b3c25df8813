"""Numbers as bytes of FP8 with one scale for a row, as kernels quantise them."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.memory import as_numbers

__all__ = [
    "FP8_LARGEST",
    "SCALE_BYTES",
    "by_inverse",
    "from_bytes",
    "pages_of_rows",
    "quantised",
    "scaled_to_fp8",
    "to_fp8",
    "to_fp8_by_fmin",
]

FP8_LARGEST = 448.0
"""Of float8_e4m3fn."""
SCALE_BYTES = 4
"""Of a row's scale, a float32."""
_FP8_LEAST = 1e-4
"""A row's largest number counts as this at least (sglang fused_norm_rope_v2.cuh)."""


def quantised(rows: npt.NDArray[np.float64]) -> tuple[torch.Tensor, npt.NDArray[np.float64]]:
    """(uint8 [..., D] bytes of float8_e4m3fn, [...] what they are to be multiplied with)."""
    scale = (np.maximum(np.abs(rows).max(-1), _FP8_LEAST) / FP8_LARGEST).astype(np.float32)
    return to_fp8(rows / scale[..., None]).view(torch.uint8), scale.astype(np.float64)


def to_fp8(numbers: npt.NDArray[Any]) -> torch.Tensor:
    """float8_e4m3fn of the nearest numbers, as kernels convert: what is too large is the largest.

    Source: CUDA cuda_fp8.hpp, conversions of `__nv_fp8_e4m3` saturate (__NV_SATFINITE).
    """
    within = torch.from_numpy(np.clip(numbers, -FP8_LARGEST, FP8_LARGEST)).float()
    return within.to(torch.float8_e4m3fn)


def to_fp8_by_fmin(numbers: npt.NDArray[Any]) -> torch.Tensor:
    """As `to_fp8`, for kernels that clip by themselves: the device's `fminf` takes the largest for
    NaN."""
    return to_fp8(np.where(np.isnan(numbers), np.float32(FP8_LARGEST), numbers))


def by_inverse(rows: torch.Tensor, scale: torch.Tensor) -> npt.NDArray[np.float32]:
    """Rows times the inverse of a scale of one number, in float32: kernels spare the divisions."""
    inverse = np.float32(1.0) / as_numbers(scale).astype(np.float32)
    scaled: npt.NDArray[np.float32] = as_numbers(rows).astype(np.float32) * inverse
    return scaled


def scaled_to_fp8(rows: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """float8_e4m3fn of rows divided by a scale of one number, in float32 as kernels divide."""
    numbers = as_numbers(rows).astype(np.float32)
    return to_fp8(numbers / as_numbers(scale).astype(np.float32))


def from_bytes(stored: torch.Tensor) -> npt.NDArray[np.float64]:
    """The numbers that bytes of float8_e4m3fn stand for."""
    return as_numbers(stored.view(torch.float8_e4m3fn))


def pages_of_rows(cache: torch.Tensor, page_size: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The two parts of each page of a cache: its rows, and behind all of these their scales.

    Args:
        cache: uint8 [pages, page_size * (D + 4)].

    Returns:
        (uint8 [pages, page_size, D], float32 [pages, page_size]), both of the cache's memory.
    """
    width = cache.shape[1] // page_size - SCALE_BYTES
    rows = cache[:, : page_size * width].unflatten(1, (page_size, width))
    return rows, cache[:, page_size * width :].view(torch.float32)
