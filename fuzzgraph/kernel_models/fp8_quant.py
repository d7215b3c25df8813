"""`static_scaled_fp8_quant`: rows become FP8 by a scale that is known beforehand.

Source: vLLM 0.17 to 0.33, csrc/quantization/w8a8/fp8/common.cu `scaled_fp8_quant_kernel_strided`
and common.cuh `scaled_fp8_conversion`. One block for each row multiplies with the inverse of the
scale; NaN becomes the largest number, for which `fminf` takes it.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.errors import KernelNotModelled
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import by_inverse, to_fp8_by_fmin
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["static_scaled_fp8_quant"]

_SOURCE = "vLLM 0.17 to 0.33, csrc/quantization/w8a8/fp8/common.cu"
_FLOATS = (torch.float32, torch.float16, torch.bfloat16)
_WHOLE = (-1, -1)
"""Rows and columns that share a scale: all of them."""


def static_scaled_fp8_quant(
    out: torch.Tensor,
    input: torch.Tensor,
    scale: torch.Tensor,
    group_shape: tuple[int, int] | None = None,
) -> None:
    """Write each number, divided by the scale, as FP8.

    Args:
        out: float8_e4m3fn [n, D], rows of any stride.
        input: [n, D], rows of any stride.
        scale: float32 of one number, read when the launch runs.
        group_shape: None or (-1, -1), one scale for all.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: a scale for each column, row or group.
    """
    _check(out, input, scale, group_shape)
    if len(input):
        launch(_QUANT, rows=input, out=out, scale=scale)


@reads_only
def _check(
    out: torch.Tensor,
    rows: torch.Tensor,
    scale: torch.Tensor,
    group_shape: tuple[int, int] | None,
) -> None:
    call = Call("static_scaled_fp8_quant", _SOURCE)
    if scale.numel() != 1 or tuple(group_shape or _WHOLE) != _WHOLE:
        what = f"{scale.numel()} scales, group_shape={group_shape}"
        raise KernelNotModelled(f"static_scaled_fp8_quant: {what}")
    call.needs_dtype("scale", scale, torch.float32)
    call.needs_shape("input", rows, None, None)
    call.needs_dtype("input", rows, *_FLOATS)
    call.needs_contiguous_last("input", rows)
    call.needs_shape("out", out, *rows.shape)
    call.needs_dtype("out", out, torch.float8_e4m3fn)
    call.needs_contiguous_last("out", out)


def _quantise(
    memory: KernelMemory, *, rows: torch.Tensor, out: torch.Tensor, scale: torch.Tensor
) -> None:
    memory.store("out", out, to_fp8_by_fmin(by_inverse(rows, scale)), np.arange(len(rows)))


_QUANT = ModelKernel("static_scaled_fp8_quant", _quantise, _SOURCE)
