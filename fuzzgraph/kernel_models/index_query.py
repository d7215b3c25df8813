"""Queries of DeepSeek V4's indexer: rotated by their positions and quantised to FP8.

Source: sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/main_norm_rope.cuh. In the place of the rotation
the model adds a row of its table to the last columns, so that the position still decides; the
transform behind it, which changes no product of a query with a key, is left out.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import quantised
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["quantise_index_query"]

_QUERY_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/main_norm_rope.cuh"
_QUERY_WIDTH = 128
"""Columns of a query: kHeadDim."""
_QUERY_ROTATED = 64
"""Those of them that are rotated, the last ones: kRopeDim."""


def quantise_index_query(
    q_input: torch.Tensor,
    q_fp8: torch.Tensor,
    weight: torch.Tensor,
    weights_out: torch.Tensor,
    weight_scale: float,
    rope_cache: torch.Tensor,
    positions: torch.Tensor,
    *,
    dtype: torch.dtype,
) -> None:
    """Fill `q_fp8`, and `weights_out` with the weight of each head times the query's scale.

    Args:
        q_input: [B, H, 128]; q_fp8: fp8 [B, H, 128].
        weight: [B, H]; weights_out: float32 [B, H, 1].
        rope_cache: float32 [positions, 64]; positions: int32 or int64 [B].
        dtype: of `q_input` and `weight`, for which the kernel is compiled.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fused_q_indexer_rope_hadamard_quant", _QUERY_SOURCE)
    call.needs_shape("q_input", q_input, None, None, _QUERY_WIDTH)
    rows, heads, _ = q_input.shape
    shapes: dict[str, tuple[torch.Tensor, tuple[int | None, ...]]] = {
        "q_fp8": (q_fp8, (rows, heads, _QUERY_WIDTH)),
        "weight": (weight, (rows, heads)),
        "weights_out": (weights_out, (rows, heads, 1)),
        "rope_cache": (rope_cache, (None, _QUERY_ROTATED)),
        "positions": (positions, (rows,)),
    }
    for name, (tensor, shape) in shapes.items():
        call.needs_shape(name, tensor, *shape)
    for name, tensor in (("q_input", q_input), ("weight", weight)):
        call.needs_dtype(name, tensor, dtype)
    call.needs_dtype("q_fp8", q_fp8, torch.float8_e4m3fn)
    for name, tensor in (("weights_out", weights_out), ("rope_cache", rope_cache)):
        call.needs_dtype(name, tensor, torch.float32)
    call.needs_dtype("positions", positions, torch.int32, torch.int64)
    for name, tensor in (("q_input", q_input), ("q_fp8", q_fp8)):
        call.needs_contiguous(name, tensor)
    call.needs_contiguous_last("weight", weight)
    if rows:
        launch(
            _INDEX_QUERY,
            q_input=q_input,
            q_fp8=q_fp8.view(torch.uint8),
            weight=weight,
            weights_out=weights_out,
            weight_scale=weight_scale,
            rope_cache=rope_cache,
            positions=positions,
        )


def _quantise_queries(
    memory: KernelMemory,
    *,
    q_input: torch.Tensor,
    q_fp8: torch.Tensor,
    weight: torch.Tensor,
    weights_out: torch.Tensor,
    weight_scale: float,
    rope_cache: torch.Tensor,
    positions: torch.Tensor,
) -> None:
    rows = np.arange(len(q_input))
    queries = memory.numbers("q_input", q_input, rows)
    placed = memory.numbers("rope_cache", rope_cache, memory.ints(positions))
    queries[..., -_QUERY_ROTATED:] += placed[:, None]
    found, scale = quantised(queries)
    memory.store("q_fp8", q_fp8, found, rows)
    weights = memory.numbers("weight", weight, rows) * weight_scale * scale
    memory.store("weights_out", weights_out, weights[..., None], rows)


_INDEX_QUERY = ModelKernel("fused_q_indexer_rope_hadamard_quant", _quantise_queries, _QUERY_SOURCE)
