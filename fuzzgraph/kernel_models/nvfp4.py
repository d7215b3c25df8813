"""Numbers in NVFP4, as kernels store and read them: two in a byte, a scale for every 16.

Source: FlashInfer 0.6.18, flashinfer/quantization/fp4_quantization.py `nvfp4_kv_quantize` and
`nvfp4_quantize_paged_kv_cache`, csrc/fp4_kv_quantization.cu. A block's scale is its largest
magnitude by 6, in e4m3; numbers are rounded to even, and what is too large is the largest. The
kernel takes reciprocals approximately, the model takes them exactly.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.e2m1 import LARGEST, bytes_of, codes_of, numbers_of
from fuzzgraph.kernel_models.fp8 import from_bytes, to_fp8
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers

__all__ = ["SCALED", "fp4_rows", "interleaved", "nvfp4_kv_quantize"]

SCALED = 16
"""Numbers that share a scale."""
_SOURCE = "FlashInfer 0.6.18, flashinfer/quantization/fp4_quantization.py"
_TOKENS = 4
"""Of a page, whose scales of values lie interleaved."""


def nvfp4_kv_quantize(
    input: Tensor2,
    global_scale: Tensor1,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Rows in NVFP4, divided by a scale of all that is read when the launch runs.

    Args:
        input: float16 or bfloat16 [M, K], K a multiple of 16.
        global_scale: float32 [1].

    Returns:
        (uint8 [M, K / 2] numbers, the first of two in the lower half; uint8 [M, K / 16] scales).

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("nvfp4_kv_quantize", _SOURCE)
    rows, columns = input.shape
    call.needs_dtype("input", input, torch.float16, torch.bfloat16)
    call.needs_contiguous("input", input)
    call.needs(rows > 0, "input must have rows, of which a grid has a block each", rows)
    call.needs(columns % SCALED == 0, f"K dimension must be divisible by {SCALED}", columns)
    call.needs_shape("global_scale", global_scale, 1)
    call.needs_dtype("global_scale", global_scale, torch.float32)
    packed = torch.empty((rows, columns // 2), dtype=torch.uint8, device=input.device)
    scales = torch.empty((rows, columns // SCALED), dtype=torch.uint8, device=input.device)
    launch(
        _QUANTIZE, input=input, global_scale=global_scale, fp4_output=packed, block_scales=scales
    )
    return packed, scales


def _quantize(
    memory: KernelMemory,
    *,
    input: torch.Tensor,
    global_scale: torch.Tensor,
    fp4_output: torch.Tensor,
    block_scales: torch.Tensor,
) -> None:
    shared = float(as_numbers(global_scale)[0])
    rows = as_numbers(input)
    blocks = rows.reshape(len(rows), rows.shape[1] // SCALED, SCALED)
    with np.errstate(divide="ignore", invalid="ignore"):
        scales = to_fp8(np.abs(blocks).max(-1) / LARGEST / shared)
        # A scale of zero is what a block of zeros has, and one too small for e4m3.
        divided = blocks / (as_numbers(scales)[..., None] * shared)
    codes = codes_of(np.nan_to_num(divided, posinf=LARGEST, neginf=-LARGEST))
    at = np.arange(len(rows))
    memory.store("fp4_output", fp4_output, bytes_of(codes.reshape(rows.shape)), at)
    memory.store("block_scales", block_scales, scales.view(torch.uint8), at)


_QUANTIZE = ModelKernel("nvfp4_kv_quantize", _quantize, _SOURCE)


def fp4_rows(
    memory: KernelMemory,
    name: str,
    packed: torch.Tensor,
    scales: torch.Tensor,
    index: tuple[Ints, ...],
    index_of_scales: tuple[Ints, ...],
    scale: float,
) -> npt.NDArray[np.float64]:
    """float64 [n, heads, D] numbers at `index`, times the scale of all.

    Args:
        packed: uint8 [..., heads, D / 2]; scales: uint8 [..., heads, D / 16].
        index_of_scales: as many arrays [n] as `scales` has leading dimensions.
    """
    numbers = numbers_of(memory.ints(memory.rows(name, packed, *index)))
    found = from_bytes(memory.rows(f"{name}_block_scales", scales, *index_of_scales))
    scaled: npt.NDArray[np.float64] = numbers * np.repeat(found, SCALED, axis=-1)
    return scaled * np.float64(scale)


def interleaved(scales: torch.Tensor) -> torch.Tensor:
    """[pages, page_size / 4, 4, heads, S] by token, of scales [pages, heads, page_size, S] whose
    last two dimensions hold four tokens' scales side by side: scale s of token t lies at
    t // 4 * 4 * S + s * 4 + t % 4.

    Source: `nvfp4_quantize_paged_kv_cache`, "V scale factor swizzling".
    """
    pages, heads, page_size, each = scales.shape
    by_page, by_head = scales.stride()[:2]
    shape = (pages, page_size // _TOKENS, _TOKENS, heads, each)
    return scales.as_strided(shape, (by_page, _TOKENS * each, 1, by_head, _TOKENS))
