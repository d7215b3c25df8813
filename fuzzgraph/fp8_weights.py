"""Kernels that round softmax's weights to FP8, as they do where values are in FP8.

Products on tensor cores have operands of one dtype, so a weight becomes what its values are. It is
then off by a part of itself, and small ones by half of FP8's smallest step or by all that they are.
Their sum, by which the result is divided, is taken before that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

__all__ = [
    "E4M3_PART",
    "E4M3_SMALLEST_STEP",
    "FLASH_ATTENTION_3",
    "TRITON",
    "TRITON_DECODES",
    "Fp8Weights",
]

E4M3_PART = 2.0**-4
"""How far float8_e4m3fn takes a number, as a part of it: half of the last of three bits behind the
leading one."""
E4M3_SMALLEST_STEP = 2.0**-9
"""Between its numbers below 2**-6."""
_SUM = 2.0**-18
"""What a sum on Hopper's tensor cores loses with each key, as a part of the largest value. They
keep 13 bits behind the leading one of 32 products and of the sum before. This is no bound, since
each of the 33 may be cut off; arithmetic of that kind stays within it, as tests show.

Source: DeepSeek-V3 technical report (arXiv 2412.19437), 3.3.2."""


@dataclass(frozen=True, slots=True)
class Fp8Weights:
    """How a kernel rounds weights."""

    least: float
    """The largest error of a small weight, as a part of the largest weight of a row."""
    on_cpu: bool
    """Whether what computes on a CPU rounds them too: the kernel itself does, a model does not."""
    of_groups: bool = False
    """Whether tiles are multiplied for query heads alone that share a KV head: decodes with as many
    of both round nothing then, except on AMD's GPUs."""
    sums: float = 0.0
    """What a sum of weighted values loses with each key, as a part of the largest value."""

    def on(self, device: torch.device) -> Fp8Weights | None:
        """The same on this device; None where nothing rounds weights."""
        if device.type == "cpu":
            return self if self.on_cpu else None
        return replace(self, sums=_SUM)

    def errors(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor:
        """How far a weighted sum of values may be off.

        The largest logit that a kernel knows when it rounds a weight may be smaller than that of
        the row; it scales the result down later, and the error with it.

        Args:
            weights: float64 [..., keys] that add up to 1.
            values: [..., keys, columns].

        Returns:
            [..., columns].
        """
        largest = weights.amax(-1, keepdim=True)
        lost = torch.maximum(E4M3_PART * weights, torch.minimum(weights, self.least * largest))
        return torch.matmul(lost, values.abs()) + self._cut_off(weights, values)

    def _cut_off(self, weights: torch.Tensor, values: torch.Tensor) -> torch.Tensor | float:
        """What sums lose, [..., 1]; a hidden key, whose weight is 0, is in none."""
        if not self.sums:
            return 0.0
        seen = weights > 0
        sizes = values.abs().amax(-1)[..., None, :].expand_as(weights)
        largest = sizes.masked_fill(~seen, 0.0).amax(-1, keepdim=True)
        return self.sums * seen.sum(-1, keepdim=True) * largest


TRITON = Fp8Weights(least=E4M3_SMALLEST_STEP / 2, on_cpu=True)
"""Of kernels that round a weight as it is: the largest is 1.

Source: sglang 0.5.23 decode_attention.py and extend_attention.py, `p.to(v.dtype)`."""
TRITON_DECODES = replace(TRITON, of_groups=True)
"""Source: sglang 0.5.23 decode_attention.py, _fwd_kernel_stage1, `p[:, None] * v`; with ROCm
_lean_attention_decode_kernel takes such decodes too."""
FLASH_ATTENTION_3 = Fp8Weights(least=E4M3_SMALLEST_STEP / 2 / 2.0**8, on_cpu=False)
"""The largest is 2**8.

Source: flash-attention 3.0.0b, hopper/softmax.h, Max_offset."""
