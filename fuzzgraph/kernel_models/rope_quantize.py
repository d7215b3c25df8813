"""Latent queries and keys, rotated by their positions and converted to FP8 in one launch.

Source: FlashInfer 0.7.2, flashinfer/rope.py, `mla_rope_quantize_fp8`, which what releases from
0.6.3 on call. Left out are scales other than 1 and other formats of FP8: `KernelNotModelled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import to_fp8
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["mla_rope_quantize_fp8"]

_SOURCE = "FlashInfer 0.7.2, flashinfer/rope.py"
_HALF = (torch.float16, torch.bfloat16)
_DEFAULTS = {"quant_scale_q": 1.0, "quant_scale_kv": 1.0, "quantize_dtype": torch.float8_e4m3fn}


def mla_rope_quantize_fp8(
    q_rope: Tensor3,
    k_rope: Tensor2,
    q_nope: Tensor3,
    k_nope: Tensor2,
    cos_sin_cache: Tensor2,
    pos_ids: Tensor1,
    is_neox: bool = True,
    *,
    q_rope_out: Tensor3,
    k_rope_out: Tensor2,
    q_nope_out: Tensor3,
    k_nope_out: Tensor2,
    enable_pdl: bool = False,
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Fill the four outputs with their inputs in FP8, rotary parts rotated before.

    Args:
        q_rope, q_nope: [T, H, columns]; k_rope, k_nope [T, columns].
        cos_sin_cache: float32 [positions, rotary columns], cosines first.
        pos_ids: [T] the position of each token.
        is_neox: whether columns of a pair lie half a row apart, or side by side.
        enable_pdl: how the launch is scheduled, unread.

    Returns:
        The outputs, each of the shape of its input.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("mla_rope_quantize_fp8", _SOURCE)
    call.leaves_out(others, _DEFAULTS)
    call.needs(q_rope.ndim == 3, "q_rope must be 3D", f"{q_rope.ndim}D")
    tokens, heads, rotary = q_rope.shape
    columns = q_nope.shape[-1]
    call.needs(rotary % 2 == 0, "rotary columns must come in pairs", rotary)
    given = {"q_rope": q_rope, "k_rope": k_rope, "q_nope": q_nope, "k_nope": k_nope}
    made = (q_rope_out, k_rope_out, q_nope_out, k_nope_out)
    shapes = (
        (tokens, heads, rotary), (tokens, rotary), (tokens, heads, columns), (tokens, columns),
    )  # fmt: skip
    for (name, tensor), out, shape in zip(given.items(), made, shapes, strict=True):
        call.needs_shape(name, tensor, *shape)
        call.needs_dtype(name, tensor, *_HALF)
        call.needs_contiguous_last(name, tensor)
        call.needs_shape(f"{name}_out", out, *shape)
        call.needs_dtype(f"{name}_out", out, torch.float8_e4m3fn)
        call.needs_contiguous_last(f"{name}_out", out)
    call.needs_shape("cos_sin_cache", cos_sin_cache, None, rotary)
    call.needs_dtype("cos_sin_cache", cos_sin_cache, torch.float32)
    call.needs_shape("pos_ids", pos_ids, tokens)
    call.needs_dtype("pos_ids", pos_ids, torch.int32, torch.int64)
    launch(
        _ROPE_QUANTIZE, q_rope=q_rope, k_rope=k_rope, q_nope=q_nope, k_nope=k_nope,
        cos_sin_cache=cos_sin_cache, pos_ids=pos_ids, is_neox=is_neox, q_rope_out=q_rope_out,
        k_rope_out=k_rope_out, q_nope_out=q_nope_out, k_nope_out=k_nope_out,
    )  # fmt: skip
    return q_rope_out, k_rope_out, q_nope_out, k_nope_out


def _rope_quantize(
    memory: KernelMemory,
    *,
    q_rope: torch.Tensor,
    k_rope: torch.Tensor,
    q_nope: torch.Tensor,
    k_nope: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    pos_ids: torch.Tensor,
    is_neox: bool,
    q_rope_out: torch.Tensor,
    k_rope_out: torch.Tensor,
    q_nope_out: torch.Tensor,
    k_nope_out: torch.Tensor,
) -> None:
    tokens = np.arange(len(q_rope))
    turns = memory.numbers("cos_sin_cache", cos_sin_cache, memory.ints(pos_ids))
    queries = _rotated(memory.numbers("q_rope", q_rope, tokens), turns[:, None], is_neox)
    keys = _rotated(memory.numbers("k_rope", k_rope, tokens), turns, is_neox)
    found = (
        ("q_rope_out", q_rope_out, queries),
        ("k_rope_out", k_rope_out, keys),
        ("q_nope_out", q_nope_out, memory.numbers("q_nope", q_nope, tokens)),
        ("k_nope_out", k_nope_out, memory.numbers("k_nope", k_nope, tokens)),
    )
    for name, out, numbers in found:
        # As bytes: torch puts no FP8 by index.
        memory.store(name, out.view(torch.uint8), to_fp8(numbers).view(torch.uint8), tokens)


def _rotated(
    rows: npt.NDArray[np.float64], turns: npt.NDArray[np.float64], is_neox: bool
) -> npt.NDArray[np.float64]:
    """Rows [..., D] turned pair by pair by cosines and sines [..., D], cosines first."""
    half = rows.shape[-1] // 2
    cos, sin = turns[..., :half], turns[..., half:]
    ones, others = slice(0, half), slice(half, None)
    if not is_neox:
        ones, others = slice(0, None, 2), slice(1, None, 2)
    found = np.empty_like(rows)
    found[..., ones] = rows[..., ones] * cos - rows[..., others] * sin
    found[..., others] = rows[..., others] * cos + rows[..., ones] * sin
    return found


_ROPE_QUANTIZE = ModelKernel("mla_rope_quantize_fp8", _rope_quantize, _SOURCE)
