"""Numbers as NVFP4 stores them: two in a byte, and one scale in FP8 for every 16 of them.

What is stored is told by the format alone (OCP Microscaling Formats 1.0, 5.3.3: e2m1; FlashInfer
0.6.18, flashinfer/quantization/fp4_quantization.py, `nvfp4_kv_quantize`: a scale in e4m3 for each
block, linear, and one float32 for all). Only numbers that the format holds as they are can be
stored here; how a kernel rounds others is `kernel_models.nvfp4`'s.
"""

from __future__ import annotations

import torch

from fuzzgraph.errors import FuzzGraphError

__all__ = ["BLOCK", "decoded", "encoded"]

BLOCK = 16
"""Numbers that share a scale; the largest of them is stored as the largest magnitude."""
_MAGNITUDES = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Of e2m1, by its lower three bits; the fourth one is the sign."""


def encoded(numbers: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(uint8 [..., D / 2] two numbers a byte, the first in the lower half; uint8 [..., D / 16]
    scales in e4m3) of numbers [..., D] that have been divided by the scale of all.

    Raises:
        FuzzGraphError: a number is none that the format holds: whoever made it is at fault.
    """
    blocks = numbers.double().unflatten(-1, (-1, BLOCK))
    scales = (blocks.abs().amax(-1) / _MAGNITUDES[-1]).float().to(torch.float8_e4m3fn)
    divisors = scales.double().unsqueeze(-1)
    parts = torch.where(divisors == 0, 0.0, blocks / divisors).flatten(-2)
    table = torch.tensor(_MAGNITUDES, dtype=torch.float64)
    found = (parts.abs().unsqueeze(-1) - table).abs().min(-1)
    if found.values.any():
        raise FuzzGraphError("content for a KV cache in NVFP4 holds numbers that NVFP4 has not")
    codes = (found.indices + 8 * parts.signbit()).to(torch.uint8)
    return codes[..., 0::2] + 16 * codes[..., 1::2], scales.view(torch.uint8)


def decoded(packed: torch.Tensor, scales: torch.Tensor) -> torch.Tensor:
    """float32 [..., D] what is `encoded`, still to be multiplied with the scale of all."""
    table = torch.tensor([*_MAGNITUDES, *(-each for each in _MAGNITUDES)])
    codes = torch.stack((packed % 16, packed // 16), dim=-1).flatten(-2)
    blocks = table[codes.long()].unflatten(-1, (-1, BLOCK))
    numbers: torch.Tensor = blocks * scales.view(torch.float8_e4m3fn).float().unsqueeze(-1)
    return numbers.flatten(-2)
