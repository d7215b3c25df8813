"""An indexer of groups of keys, as sglang's own kernels prepare and score it for Qwen's models.

Source: sglang 0.5.20 to 0.5.23, csrc/attention/qsa_indexer.cuh (what a token leaves, and the key of
a group), csrc/elementwise/fast_topk.cuh (the selection) and srt/layers/attention/qsa/mqa.py
(`_tilelang_qsa_mqa_decode_kernel`, the scores). Norms and rotations round as the kernels do, step
by step. Left out are pairs of columns that are neighbours, keys in FP8, and for which numbers of
heads and columns kernels are compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3, Tensor4
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers
from fuzzgraph.kernel_models.sparse_indexer import store_best_keys

__all__ = [
    "compress_group_keys",
    "group_scores",
    "prepare_group_queries",
    "select_groups",
]

_PREPARES = "sglang 0.5.20 to 0.5.23, csrc/attention/qsa_indexer.cuh"
_SELECTS = "sglang 0.5.20 to 0.5.23, csrc/elementwise/fast_topk.cuh"
_SCORES_GROUPS = "sglang 0.5.20 to 0.5.23, qsa/mqa.py _tilelang_qsa_mqa_decode_kernel"
_AXES = 3
"""Coordinates of a position."""
_MOST_IN_GROUP = 16


def prepare_group_queries(
    qk: Tensor2,
    q_out: Tensor3,
    weight: Tensor1,
    cos_sin_cache: Tensor2,
    axis_map: Tensor1,
    positions: Tensor2,
    num_axes: int,
    cache_loc: Tensor1,
    key_state_buffer: Tensor2,
    rope_position_buffer: Tensor2,
    num_q_heads: int,
    rotary_dim: int,
    eps: float,
    *,
    width: int | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Norm and rotate queries, and keep each token's key and position for its group.

    Args:
        qk: [N, (H + 1) * D] queries of H heads and, behind them, a key.
        q_out: [N, padded heads, D]; heads from H on get zeros.
        weight: [D], of which the norm has one more.
        cos_sin_cache: float32 [positions, rotary_dim]; axis_map: int32 [rotary_dim / 2].
        positions: int64 [num_axes, N]; num_axes: 1 or 3.
        cache_loc: int64 [N] where key and position go.
        key_state_buffer: [slots, D]; rope_position_buffer: int64 [slots, 3].
        width: D; dtype: of `weight` and of what it is applied to. The kernel is compiled for these;
            None where nothing says for which.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("qsa_index_q_prep", _PREPARES)
    rows = len(qk)
    width = _check_weight(call, weight, width, dtype)
    _check_norm(call, weight, cos_sin_cache, axis_map, rotary_dim)
    call.needs(rows > 0, "there must be tokens", rows)
    call.needs(num_axes in (1, _AXES), "positions must have 1 or 3 axes", num_axes)
    call.needs_shape("qk", qk, None, (num_q_heads + 1) * width)
    call.needs_shape("q_out", q_out, rows, None, width)
    call.needs(q_out.shape[1] >= num_q_heads, "q_out must hold all heads", q_out.shape[1])
    call.needs_shape("positions", positions, num_axes, rows)
    call.needs_shape("cache_loc", cache_loc, rows)
    _check_ring(call, key_state_buffer, rope_position_buffer, weight)
    for name, tensor in (("qk", qk), ("q_out", q_out)):
        call.needs_dtype(name, tensor, weight.dtype)
    for name, tensor in (("positions", positions), ("cache_loc", cache_loc)):
        call.needs_dtype(name, tensor, torch.int64)
    call.needs_contiguous_last("positions", positions)
    for name, tensor in (("qk", qk), ("q_out", q_out), ("cache_loc", cache_loc)):
        call.needs_contiguous(name, tensor)
    launch(
        _QUERIES,
        qk=qk,
        q_out=q_out,
        weight=weight,
        rotations=cos_sin_cache,
        axes=axis_map,
        positions=positions,
        cache_loc=cache_loc,
        ring=key_state_buffer,
        ring_positions=rope_position_buffer,
        heads=num_q_heads,
        eps=eps,
    )


def compress_group_keys(
    key_state_buffer: Tensor2,
    group_locs: Tensor2,
    rope_position_buffer: Tensor2,
    cos_sin_cache: Tensor2,
    axis_map: Tensor1,
    weight: Tensor1,
    write_locs: Tensor1,
    compressed_k_buffer: Tensor2,
    compress_ratio: int,
    rotary_dim: int,
    eps: float,
    *,
    width: int | None = None,
    dtype: torch.dtype | None = None,
) -> None:
    """Write the key of each group: the mean of its tokens', normed, and rotated by the first one's
    position.

    Args:
        key_state_buffer: [slots, D]; rope_position_buffer: int64 [slots, 3].
        group_locs: int32 [G, compress_ratio] slots of each group's tokens.
        cos_sin_cache, axis_map, weight, width, dtype: as of `prepare_group_queries`.
        write_locs: int32 [G]; compressed_k_buffer: [compressed slots, D].

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("qsa_index_k_compress", _PREPARES)
    groups = len(write_locs)
    width = _check_weight(call, weight, width, dtype)
    _check_norm(call, weight, cos_sin_cache, axis_map, rotary_dim)
    call.needs(groups > 0, "there must be groups", groups)
    rule = f"compress_ratio must lie in 1 to {_MOST_IN_GROUP}"
    call.needs(0 < compress_ratio <= _MOST_IN_GROUP, rule, compress_ratio)
    call.needs_shape("group_locs", group_locs, groups, compress_ratio)
    call.needs_shape("compressed_k_buffer", compressed_k_buffer, None, width)
    call.needs_dtype("compressed_k_buffer", compressed_k_buffer, weight.dtype)
    _check_ring(call, key_state_buffer, rope_position_buffer, weight)
    for name, tensor in (("group_locs", group_locs), ("write_locs", write_locs)):
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_contiguous(name, tensor)
    call.needs_contiguous("compressed_k_buffer", compressed_k_buffer)
    launch(
        _GROUP_KEYS,
        ring=key_state_buffer,
        group_locs=group_locs,
        ring_positions=rope_position_buffer,
        rotations=cos_sin_cache,
        axes=axis_map,
        weight=weight,
        write_locs=write_locs,
        compressed=compressed_k_buffer,
        eps=eps,
    )


def select_groups(
    score: Tensor2,
    row_starts: Tensor1,
    indices: Tensor2,
    lengths: Tensor1,
    *,
    topk: int | None = None,
) -> None:
    """Write where the best scores of each row stand, as many as `indices` has columns; -1 behind a
    row with fewer. A row with no more scores than that is not read.

    Args:
        score: float32 [B, L]; row_starts, lengths: int32 [B]; indices: int32 [B, topk], filled in
            no defined order, here ascending.
        topk: for which the kernel is compiled; None where nothing says it.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fast_topk", _SELECTS)
    rows = len(score)
    call.needs_dtype("score", score, torch.float32)
    call.needs_contiguous_last("score", score)
    for name, tensor in (("row_starts", row_starts), ("lengths", lengths)):
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_shape(name, tensor, rows)
        call.needs_contiguous(name, tensor)
    call.needs_dtype("indices", indices, torch.int32)
    call.needs_shape("indices", indices, rows, topk)
    call.needs_contiguous("indices", indices)
    if rows:
        launch(_BEST_GROUPS, score=score, row_starts=row_starts, chosen=indices, lengths=lengths)


def group_scores(
    q: Tensor4,
    k_cache: Tensor4,
    page_table: Tensor2,
    context_lens: Tensor1,
    logits: Tensor2,
    scale: float,
    *,
    min_scored_len: int = 0,
) -> None:
    """The sum over heads of each key's products with a query, below 0 taken for 0.

    Args:
        q: bfloat16 [B, 1, H, D]; k_cache: bfloat16 [pages, page_size, 1, D].
        page_table: int32 [B, pages of a row]; context_lens: int32 [B] keys of each row.
        logits: float32 [B, columns]; what lies behind a row's keys is left as it is.
        scale: what sums are divided by.
        min_scored_len: rows of no more keys are left out.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("qsa_mqa_decode", _SCORES_GROUPS)
    rows, _, _, width = q.shape
    call.needs_shape("q", q, None, 1, None, None)
    call.needs_shape("k_cache", k_cache, None, None, 1, width)
    call.needs_shape("page_table", page_table, rows, None)
    call.needs_shape("context_lens", context_lens, rows)
    call.needs_shape("logits", logits, rows, None)
    for name, tensor in (("q", q), ("k_cache", k_cache)):
        call.needs_dtype(name, tensor, torch.bfloat16)
        call.needs_contiguous(name, tensor)
    for name, tensor in (("page_table", page_table), ("context_lens", context_lens)):
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_contiguous(name, tensor)
    call.needs_dtype("logits", logits, torch.float32)
    call.needs_contiguous("logits", logits)
    if rows:
        launch(
            _GROUP_SCORES,
            q=q,
            k_cache=k_cache,
            page_table=page_table,
            context_lens=context_lens,
            logits=logits,
            scale=scale,
            least=min_scored_len,
        )


def _check_weight(
    call: Call, weight: torch.Tensor, width: int | None, dtype: torch.dtype | None
) -> int:
    """The columns that a kernel is compiled for, which its weight has."""
    if dtype is not None:
        call.needs_dtype("weight", weight, dtype)
    call.needs_shape("weight", weight, width)
    columns: int = weight.shape[0]
    return columns


def _check_norm(
    call: Call,
    weight: torch.Tensor,
    cos_sin_cache: torch.Tensor,
    axis_map: torch.Tensor,
    rotary_dim: int,
) -> None:
    width = weight.shape[0]
    rule = f"rotary_dim must be even and lie in 2 to {width}"
    call.needs(0 < rotary_dim <= width and rotary_dim % 2 == 0, rule, rotary_dim)
    call.needs_dtype("weight", weight, torch.bfloat16, torch.float16)
    call.needs_dtype("cos_sin_cache", cos_sin_cache, torch.float32)
    call.needs_shape("cos_sin_cache", cos_sin_cache, None, rotary_dim)
    call.needs_dtype("axis_map", axis_map, torch.int32)
    call.needs_shape("axis_map", axis_map, rotary_dim // 2)


def _check_ring(
    call: Call, keys: torch.Tensor, positions: torch.Tensor, weight: torch.Tensor
) -> None:
    call.needs_dtype("key_state_buffer", keys, weight.dtype)
    call.needs_shape("key_state_buffer", keys, None, weight.shape[0])
    call.needs_dtype("rope_position_buffer", positions, torch.int64)
    call.needs_shape("rope_position_buffer", positions, None, _AXES)
    for name, tensor in (("key_state_buffer", keys), ("rope_position_buffer", positions)):
        call.needs_contiguous(name, tensor)


# ---- the bodies


def _rounded_to(dtype: torch.dtype, values: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    return as_numbers(torch.empty(values.shape, dtype=dtype).copy_(torch.from_numpy(values)))


def _normed(
    memory: KernelMemory, rows: npt.NDArray[np.float64], weight: torch.Tensor, eps: float
) -> npt.NDArray[np.float64]:
    """[..., D] rows of a norm of one, with gains one more than the weights."""
    gains = 1 + memory.numbers("weight", weight, np.arange(len(weight)))
    norms = ((rows**2).mean(-1, keepdims=True) + eps) ** -0.5
    return _rounded_to(weight.dtype, rows * norms * gains)


def _turned(
    memory: KernelMemory,
    rows: npt.NDArray[np.float64],
    places: Ints,
    rotations: torch.Tensor,
    axes: torch.Tensor,
    dtype: torch.dtype,
) -> npt.NDArray[np.float64]:
    """Rows [n, ..., D] turned by their positions.

    Args:
        places: [n, 3] coordinates of each row's position.
    """
    half = len(axes)
    pairs = np.arange(half)
    at = places[:, memory.entries("axis_map", axes, pairs)]
    table = memory.numbers("cos_sin_cache", rotations, at.ravel())
    table = _rounded_to(dtype, table).reshape(len(rows), half, 2 * half)
    shape = (len(rows), *[1] * (rows.ndim - 2), half)
    cosines = table[:, pairs, pairs].reshape(shape)
    sines = table[:, pairs, half + pairs].reshape(shape)
    one, other = rows[..., :half], rows[..., half : 2 * half]

    def times(values: npt.NDArray[np.float64], by: npt.NDArray[np.float64]) -> Any:
        return _rounded_to(dtype, values * by)

    found = rows.copy()
    found[..., :half] = times(one, cosines) - times(other, sines)
    found[..., half : 2 * half] = times(other, cosines) + times(one, sines)
    return _rounded_to(dtype, found)


def _prepare_group_queries(
    memory: KernelMemory,
    *,
    qk: torch.Tensor,
    q_out: torch.Tensor,
    weight: torch.Tensor,
    rotations: torch.Tensor,
    axes: torch.Tensor,
    positions: torch.Tensor,
    cache_loc: torch.Tensor,
    ring: torch.Tensor,
    ring_positions: torch.Tensor,
    heads: int,
    eps: float,
) -> None:
    rows, width = np.arange(len(qk)), len(weight)
    given = memory.numbers("qk", qk, rows).reshape(len(qk), heads + 1, width)
    places = np.broadcast_to(memory.ints(positions).T, (len(qk), _AXES))
    queries = np.zeros((len(qk), q_out.shape[1], width))
    normed = _normed(memory, given[:, :heads], weight, eps)
    queries[:, :heads] = _turned(memory, normed, places, rotations, axes, weight.dtype)
    memory.store("q_out", q_out, queries, rows)
    slots = memory.ints(cache_loc)
    memory.store("key_state_buffer", ring, given[:, heads], slots)
    memory.store("rope_position_buffer", ring_positions, np.ascontiguousarray(places), slots)


def _compress_group_keys(
    memory: KernelMemory,
    *,
    ring: torch.Tensor,
    group_locs: torch.Tensor,
    ring_positions: torch.Tensor,
    rotations: torch.Tensor,
    axes: torch.Tensor,
    weight: torch.Tensor,
    write_locs: torch.Tensor,
    compressed: torch.Tensor,
    eps: float,
) -> None:
    slots = memory.ints(group_locs)
    kept = memory.numbers("key_state_buffer", ring, slots.ravel()).reshape(*slots.shape, -1)
    mean = _rounded_to(weight.dtype, kept.mean(1))
    firsts = slots[:, 0]
    places = as_numbers(memory.rows("rope_position_buffer", ring_positions, firsts))
    normed = _normed(memory, mean, weight, eps)
    keys = _turned(memory, normed, places.astype(np.int64), rotations, axes, weight.dtype)
    memory.store("compressed_k_buffer", compressed, keys, memory.ints(write_locs))


def _score_groups(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    page_table: torch.Tensor,
    context_lens: torch.Tensor,
    logits: torch.Tensor,
    scale: float,
    least: int,
) -> None:
    queries, size = as_numbers(q)[:, 0], k_cache.shape[1]
    for row, length in enumerate(memory.ints(context_lens).tolist()):
        if length <= least:
            continue
        keys = np.arange(length)
        same = np.full_like(keys, row)
        pages = memory.entries("page_table", page_table, same, keys // size)
        read = memory.numbers("k_cache", k_cache, pages, keys % size, np.zeros_like(keys))
        found = np.maximum(read @ queries[row].T, 0).sum(1) / scale
        memory.store("logits", logits, found, same, keys)


_QUERIES = ModelKernel("qsa_index_q_prep", _prepare_group_queries, _PREPARES)
_GROUP_KEYS = ModelKernel("qsa_index_k_compress", _compress_group_keys, _PREPARES)
_BEST_GROUPS = ModelKernel("fast_topk", store_best_keys, _SELECTS)
_GROUP_SCORES = ModelKernel("qsa_mqa_decode", _score_groups, _SCORES_GROUPS)
