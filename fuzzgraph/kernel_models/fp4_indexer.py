"""Keys and queries of DeepSeek V4.1's indexer: rotated by their positions and packed as FP4.

Source: sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/fp4_indexer_rope.cuh. Left out is a key's norm; in
the place of the rotation the model adds the last columns of a row of its table to the last columns,
so that the position still decides.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.mxfp4 import FP4_SCALE_BYTES, fp4_pages, packed

__all__ = ["pack_index_keys", "pack_index_queries"]

_SOURCE = "sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/fp4_indexer_rope.cuh"
_WIDTH = 128
"""Columns of a query or a key: kHeadDim."""
_ROTATED = 64
"""Those of them that are rotated, the last ones: kRopeDim."""
_SLOT_BYTES = _WIDTH // 2 + FP4_SCALE_BYTES
_INTS = (torch.int32, torch.int64)


def pack_index_keys(
    input: torch.Tensor,
    norm_weight: torch.Tensor,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    loc: torch.Tensor,
    cache: torch.Tensor,
    eps: float,
    *,
    page_size: int,
    ratio: int,
    sizes: tuple[int, int] | None = None,
) -> None:
    """Write each row's key to its slot.

    Args:
        input: bfloat16 [N, 128]; norm_weight: bfloat16 [128].
        freqs_cis: float32 [positions, R]; positions: int [N] of the tokens, of whose group's first
            one the row of the table counts.
        loc: int64 [N] slots; a row with 0 or less writes nothing.
        cache: uint8 [pages, page_size * 68]; a page's rows, and behind them the scales of each.
        page_size: slots of a page; ratio: tokens of a group, a power of two; sizes: columns of a
            key and of `freqs_cis`. The kernel is compiled for these; None where nothing says them.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("index_k_norm_rope_pack_store", _SOURCE)
    if sizes is not None:
        call.needs_shape("input", input, None, sizes[0])
        call.needs_shape("freqs_cis", freqs_cis, None, sizes[1])
    call.needs_shape("input", input, None, _WIDTH)
    rows = input.shape[0]
    call.needs_shape("norm_weight", norm_weight, _WIDTH)
    for name, tensor in (("input", input), ("norm_weight", norm_weight)):
        call.needs_dtype(name, tensor, torch.bfloat16)
    _check_rotation(call, freqs_cis, positions, rows)
    call.needs_dtype("loc", loc, torch.int64)
    call.needs_shape("loc", loc, rows)
    call.needs_dtype("cache", cache, torch.uint8)
    call.needs_shape("cache", cache, None, page_size * _SLOT_BYTES)
    for name, tensor in (("input", input), ("loc", loc)):
        call.needs_contiguous(name, tensor)
    if rows:
        launch(
            _KEYS,
            input=input,
            freqs_cis=freqs_cis,
            positions=positions,
            loc=loc,
            cache=cache,
            page_size=page_size,
            ratio=ratio,
        )


def pack_index_queries(
    input: torch.Tensor,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    payload: torch.Tensor,
    scale: torch.Tensor,
    head_weights: torch.Tensor,
    weights_out: torch.Tensor,
    weight_scale: float,
    *,
    sizes: tuple[int, int] | None = None,
) -> None:
    """Fill `payload` and `scale` with the queries, `weights_out` with the weights of their heads.

    Args:
        input: bfloat16 [N, H, 128]; freqs_cis: float32 [positions, R]; positions: int [N].
        payload: int8 [N * H, 64]; scale: int32 [N * H] the exponents of a query's four scales.
        head_weights: bfloat16 [N, H]; weights_out: float32 [N, H], each times `weight_scale` and
            rounded to bfloat16.
        sizes: as of `pack_index_keys`.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("index_q_rope_pack_weights", _SOURCE)
    if sizes is not None:
        call.needs_shape("input", input, None, None, sizes[0])
        call.needs_shape("freqs_cis", freqs_cis, None, sizes[1])
    call.needs_shape("input", input, None, None, _WIDTH)
    rows, heads, _ = input.shape
    for name, tensor in (("input", input), ("head_weights", head_weights)):
        call.needs_dtype(name, tensor, torch.bfloat16)
        call.needs_contiguous(name, tensor)
    _check_rotation(call, freqs_cis, positions, rows)
    call.needs_dtype("payload", payload, torch.int8)
    call.needs_shape("payload", payload, rows * heads, _WIDTH // 2)
    call.needs_dtype("scale", scale, torch.int32)
    call.needs_shape("scale", scale, rows * heads)
    call.needs_shape("head_weights", head_weights, rows, heads)
    call.needs_dtype("weights_out", weights_out, torch.float32)
    call.needs_shape("weights_out", weights_out, rows, heads)
    if rows * heads:
        launch(
            _QUERIES,
            input=input,
            freqs_cis=freqs_cis,
            positions=positions,
            payload=payload,
            scale=scale,
            head_weights=head_weights,
            weights_out=weights_out,
            weight_scale=weight_scale,
        )


def _check_rotation(
    call: Call, freqs_cis: torch.Tensor, positions: torch.Tensor, rows: int
) -> None:
    call.needs_dtype("freqs_cis", freqs_cis, torch.float32)
    call.needs_shape("freqs_cis", freqs_cis, None, None)
    columns = freqs_cis.shape[1]
    call.needs(columns >= _ROTATED, f"freqs_cis must have {_ROTATED} columns", columns)
    call.needs_dtype("positions", positions, *_INTS)
    call.needs_shape("positions", positions, rows)
    call.needs_contiguous("positions", positions)


# ---- the bodies


def _pack_keys(
    memory: KernelMemory,
    *,
    input: torch.Tensor,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    loc: torch.Tensor,
    cache: torch.Tensor,
    page_size: int,
    ratio: int,
) -> None:
    slots = memory.ints(loc)
    live = np.flatnonzero(slots > 0)
    if not len(live):
        return
    slots, places = slots[live], memory.ints(positions)[live]
    keys = memory.numbers("input", input, live)
    rotations = memory.numbers("freqs_cis", freqs_cis, places // ratio * ratio)
    keys[:, -_ROTATED:] += rotations[:, -_ROTATED:]
    numbers, exponents = packed(keys)
    rows, scales = fp4_pages(cache, page_size)
    at = slots // page_size, slots % page_size
    memory.store("cache", rows, numbers, *at)
    memory.store("cache", scales, exponents, *at)


def _pack_queries(
    memory: KernelMemory,
    *,
    input: torch.Tensor,
    freqs_cis: torch.Tensor,
    positions: torch.Tensor,
    payload: torch.Tensor,
    scale: torch.Tensor,
    head_weights: torch.Tensor,
    weights_out: torch.Tensor,
    weight_scale: float,
) -> None:
    every = np.arange(len(input))
    queries = memory.numbers("input", input, every)
    rotations = memory.numbers("freqs_cis", freqs_cis, memory.ints(positions))
    queries[..., -_ROTATED:] += rotations[:, None, -_ROTATED:]
    numbers, exponents = packed(queries.reshape(-1, _WIDTH))
    rows = np.arange(len(numbers))
    memory.store("payload", payload, numbers.view(np.int8), rows)
    words = np.ascontiguousarray(exponents).view(np.int32)[:, 0]
    memory.store("scale", scale, words, rows)
    weights = memory.numbers("head_weights", head_weights, every) * weight_scale
    rounded = torch.from_numpy(weights).to(torch.bfloat16).float()
    memory.store("weights_out", weights_out, rounded, every)


_KEYS = ModelKernel("index_k_norm_rope_pack_store", _pack_keys, _SOURCE)
_QUERIES = ModelKernel("index_q_rope_pack_weights", _pack_queries, _SOURCE)
