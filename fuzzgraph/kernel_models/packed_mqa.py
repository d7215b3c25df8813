"""DeepGEMM's scores of an indexer over FP8 keys that lie one behind the other, as of one prompt.

Source: DeepGEMM 54e2261 (June 2026), csrc/apis/attention.hpp and
deep_gemm/impls/sm90_fp8_mqa_logits.cuh. Each query has a range of the keys, and its scores lie by
their places in it. Queries are computed in blocks, over tiles of keys from the first one of the
block's ranges to the last: behind all keys a tile reads zeros. A block whose last range ends before
its first one begins would never end. Left out are scores that lie by the keys' own places, their
cleaning, FP4 and bfloat16, and for which numbers of heads and columns the kernel is compiled.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers

__all__ = ["fp8_mqa_logits"]

_PACKED_MQA_SOURCE = "DeepGEMM 54e2261, csrc/apis/attention.hpp"
_ROWS = 128
"""Rows of a block: query tokens times heads."""
_TILE = 256
"""Keys of a tile, and a multiple of the columns that the scores have in memory."""
_ALIGNED = 4
"""A block's first key is a multiple of it, for the loads of scales."""
_UNSIGNED = 1 << 32


def fp8_mqa_logits(
    q: Tensor3,
    kv: tuple[torch.Tensor, torch.Tensor],
    weights: Tensor2,
    cu_seq_len_k_start: Tensor1,
    cu_seq_len_k_end: Tensor1,
    clean_logits: bool = True,
    max_seqlen_k: int = 0,
    **others: Any,
) -> torch.Tensor:
    """The weighted sum over heads of each key's products with a query, below 0 taken for 0.

    Args:
        q: fp8 [T, heads, D].
        kv: fp8 [keys, D] and float32 [keys] their scales.
        weights: float32 [T, heads].
        cu_seq_len_k_start, cu_seq_len_k_end: int32 [T] of each query's range of keys.
        clean_logits: not followed; what lies outside of a query's range is undefined.
        max_seqlen_k: columns of the scores, the first of which is of a range's first key; without,
            scores lie by all keys, which is not followed.

    Returns:
        float32 [T, max_seqlen_k].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: it has arguments that this model does not follow.
    """
    call = Call("fp8_mqa_logits", _PACKED_MQA_SOURCE)
    call.leaves_out({"clean_logits": clean_logits, **others}, {"clean_logits": False})
    if not max_seqlen_k:
        call.leaves_out({"max_seqlen_k": max_seqlen_k}, {})
    tokens, heads, width = q.shape
    call.needs(0 < heads <= _ROWS and _ROWS % heads == 0, f"heads must divide {_ROWS}", heads)
    call.needs_dtype("q", q, torch.float8_e4m3fn)
    call.needs_contiguous("q", q)
    _check_keys(call, kv, width)
    call.needs_dtype("weights", weights, torch.float32)
    call.needs_shape("weights", weights, tokens, heads)
    call.needs_contiguous_last("weights", weights)
    ranges = {"cu_seq_len_k_start": cu_seq_len_k_start, "cu_seq_len_k_end": cu_seq_len_k_end}
    for name, ends in ranges.items():
        call.needs_dtype(name, ends, torch.int32)
        call.needs_shape(name, ends, tokens)
        call.needs_contiguous(name, ends)
    call.needs(max_seqlen_k > 0, "max_seqlen_k must not be negative", max_seqlen_k)
    block = _ROWS // heads
    shape = -(-tokens // block) * block, -(-max_seqlen_k // _TILE) * _TILE  # as they are in memory
    logits = torch.empty(shape, dtype=torch.float32, device=q.device)
    if tokens:
        launch(
            _PACKED_SCORES,
            q=q,
            keys=kv[0],
            scales=kv[1],
            weights=weights,
            starts=cu_seq_len_k_start,
            ends=cu_seq_len_k_end,
            logits=logits,
        )
    return logits[:tokens, :max_seqlen_k]


def _check_keys(call: Call, kv: tuple[torch.Tensor, torch.Tensor], width: int) -> None:
    call.needs(len(kv) == 2, "kv must be keys and their scales", f"{len(kv)}")
    keys, scales = kv
    call.needs_dtype("the keys of kv", keys, torch.float8_e4m3fn)
    call.needs_shape("the keys of kv", keys, None, width)
    call.needs_contiguous("the keys of kv", keys)
    call.needs_dtype("the scales of kv", scales, torch.float32)
    call.needs_shape("the scales of kv", scales, len(keys))
    call.needs_contiguous("the scales of kv", scales)


# ---- the body


def _score_packed(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    keys: torch.Tensor,
    scales: torch.Tensor,
    weights: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    count = len(keys)
    # Numbers below 0 are large ones to the kernel.
    first, stop = (memory.ints(each) % _UNSIGNED for each in (starts, ends))
    for rows, tiles in _query_blocks(memory, first, stop, count, _ROWS // q.shape[1]):
        if not len(tiles):
            continue
        scores = _tile_scores(
            memory, as_numbers(q[rows]), as_numbers(weights[rows]), keys, scales, tiles
        )
        own = (first[rows][:, None] <= tiles) & (tiles < stop[rows][:, None])
        row, key = np.nonzero(own)
        columns = tiles[key] - first[rows][row]
        memory.store("logits", logits, scores[row, key], row + rows.start, columns)


def _query_blocks(
    memory: KernelMemory, first: Ints, stop: Ints, count: int, block: int
) -> Iterator[tuple[slice, Ints]]:
    """(query tokens, keys of their tiles) of each block."""
    for begin in range(0, len(first), block):
        rows = slice(begin, min(begin + block, len(first)))
        low = int(np.minimum(first[rows], count).min()) // _ALIGNED * _ALIGNED
        high = int(np.minimum(stop[rows], count).max())
        if high < low:
            rule = "cu_seq_len_k_end of a block must not lie before its cu_seq_len_k_start"
            memory.misused("cu_seq_len_k_end", rule, f"{high} before {low} at token {begin}")
            continue
        yield rows, low + np.arange(-(-(high - low) // _TILE) * _TILE)


def _tile_scores(
    memory: KernelMemory,
    queries: npt.NDArray[np.float64],
    factors: npt.NDArray[np.float64],
    keys: torch.Tensor,
    scales: torch.Tensor,
    tiles: Ints,
) -> npt.NDArray[np.float64]:
    """[queries, keys of tiles] scores; those behind the last key are 0."""
    known = tiles[tiles < len(keys)]
    read = memory.numbers("kv", keys, known)
    products = np.maximum(np.einsum("thd,nd->thn", queries, read, optimize=True), 0)
    found = np.zeros((len(queries), len(tiles)))
    found[:, : len(known)] = np.einsum("th,thn->tn", factors, products)
    found[:, : len(known)] *= memory.numbers("kv", scales, known)
    return found


_PACKED_SCORES = ModelKernel("fp8_mqa_logits", _score_packed, _PACKED_MQA_SOURCE)
