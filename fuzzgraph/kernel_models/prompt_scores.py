"""Scores of prompts' tokens for groups of keys, as sglang's kernels in TileLang compute them.

Keys of all requests lie packed one behind the other, and each row has a range of them. Rows are
computed in blocks, and keys in tiles: a row gets a score for each key of its block's tiles, its own
or not. Where a block or a tile ends behind a tensor, TileLang guards each access: what it would
load is 0, what it would store is dropped. Left out are keys in FP8.

Source: sglang 0.5.20 to 0.5.23, srt/layers/attention/qsa/mqa.py.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers

__all__ = ["mask_scores", "packed_scores", "relative_scores"]

_SOURCE = "sglang 0.5.20 to 0.5.23, qsa/mqa.py {}"
_PACKED_NAME = "_tilelang_qsa_mqa_prefill_kernel"
_RELATIVE_NAME = "_tilelang_qsa_mqa_prefill_relative_kernel"
_MASK_NAME = "_tilelang_qsa_mqa_mask_kernel"


def packed_scores(
    q: Tensor2,
    k: Tensor2,
    logits: Tensor2,
    starts: Tensor1,
    ends: Tensor1,
    *,
    heads: int,
    head_dim: int,
    block_n: int,
    block_q: int,
) -> None:
    """Write each row's scores below the keys that they are of: the sum over heads of products with
    a query, below 0 taken for 0.

    Args:
        q: bfloat16 [rows * heads, head_dim]; k: bfloat16 [keys, head_dim].
        logits: float32 [rows, keys]; columns of no tile stay as they are.
        starts, ends: int32 [rows] of each row's keys.
        block_n: keys of a tile; block_q: rows of a block.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("qsa_mqa_prefill", _SOURCE.format(_PACKED_NAME))
    _check(call, q, k, logits, starts, ends, heads, head_dim, block_n, block_q)
    call.needs_shape("logits", logits, None, len(k))
    launch(
        _PACKED,
        q=q, k=k, logits=logits, starts=starts, ends=ends, heads=heads, tile=block_n, block=block_q,
    )  # fmt: skip


def relative_scores(
    q: Tensor2,
    k: Tensor2,
    logits: Tensor2,
    starts: Tensor1,
    ends: Tensor1,
    *,
    heads: int,
    head_dim: int,
    block_n: int,
    block_q: int,
) -> None:
    """The same, where a row's first column is of the first key of its own.

    Args:
        q, k, starts, ends, block_n, block_q: as of `packed_scores`.
        logits: float32 [rows, width]; scores of keys before the row's own, and behind `width`, are
            dropped.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("qsa_mqa_prefill_relative", _SOURCE.format(_RELATIVE_NAME))
    _check(call, q, k, logits, starts, ends, heads, head_dim, block_n, block_q)
    launch(
        _RELATIVE,
        q=q, k=k, logits=logits, starts=starts, ends=ends, heads=heads, tile=block_n, block=block_q,
    )  # fmt: skip


def mask_scores(logits: Tensor2, starts: Tensor1, ends: Tensor1) -> None:
    """Write minus infinity into the columns outside of each row's range.

    Args:
        logits: float32 [rows, keys]; starts, ends: int32 [rows].

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("qsa_mqa_mask", _SOURCE.format(_MASK_NAME))
    _check_ranges(call, logits, starts, ends)
    launch(_MASK, logits=logits, starts=starts, ends=ends)


def _check(
    call: Call,
    q: torch.Tensor,
    k: torch.Tensor,
    logits: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    heads: int,
    head_dim: int,
    block_n: int,
    block_q: int,
) -> None:
    for name, size in (("block_n", block_n), ("block_q", block_q)):
        call.needs(size > 0, f"{name} must be positive, to build tiles of it", size)
    _check_ranges(call, logits, starts, ends)
    call.needs_shape("q", q, len(logits) * heads, head_dim)
    call.needs_shape("k", k, None, head_dim)
    for name, tensor in (("q", q), ("k", k)):
        call.needs_dtype(name, tensor, torch.bfloat16)
        call.needs_contiguous(name, tensor)


def _check_ranges(
    call: Call, logits: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> None:
    call.needs_dtype("logits", logits, torch.float32)
    call.needs_contiguous("logits", logits)
    for name, tensor in (("starts", starts), ("ends", ends)):
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_shape(name, tensor, len(logits))
        call.needs_contiguous(name, tensor)


# ---- the bodies


def _tiles(
    starts: Ints, ends: Ints, keys: int, tile: int, block: int
) -> Iterator[tuple[Ints, Ints]]:
    """For each block of rows: the rows, and the keys of its tiles, of which the last may end behind
    all keys."""
    for first in range(0, len(starts), block):
        # Of rows behind the last one, a guarded load gives 0.
        behind = [0] if first + block > len(starts) else []
        low = min([*starts[first : first + block].tolist(), *behind, keys])
        high = min(max([*ends[first : first + block].tolist(), *behind]), keys)
        count = max(0, -(-(high - low) // tile)) * tile
        rows = np.arange(first, min(first + block, len(starts)))
        yield rows, low + np.arange(count)


def _scores(
    memory: KernelMemory, q: torch.Tensor, k: torch.Tensor, rows: Ints, keys: Ints, heads: int
) -> npt.NDArray[np.float64]:
    """[rows, keys] of a block's tiles; keys behind the last one have none."""
    known = keys[(keys >= 0) & (keys < len(k))]
    read = memory.numbers("k", k, known)
    queries = as_numbers(q).reshape(-1, heads, q.shape[1])[rows]
    found = np.zeros((len(rows), len(keys)))
    products = np.maximum(np.einsum("rhd,nd->rhn", queries, read), 0)
    found[:, (keys >= 0) & (keys < len(k))] = products.sum(1)
    return found


def _store_scores(
    memory: KernelMemory, logits: torch.Tensor, rows: Ints, columns: Ints, scores: Any
) -> None:
    """Scores [rows, keys] into columns [rows, keys], those outside of the tensor dropped."""
    inside = (columns >= 0) & (columns < logits.shape[1])
    where = np.broadcast_to(rows[:, None], columns.shape)
    memory.store("logits", logits, scores[inside], where[inside], columns[inside])


def _packed(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    logits: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    heads: int,
    tile: int,
    block: int,
) -> None:
    for rows, keys in _tiles(memory.ints(starts), memory.ints(ends), len(k), tile, block):
        columns = np.broadcast_to(keys, (len(rows), len(keys)))
        _store_scores(memory, logits, rows, columns, _scores(memory, q, k, rows, keys, heads))


def _relative(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    logits: torch.Tensor,
    starts: torch.Tensor,
    ends: torch.Tensor,
    heads: int,
    tile: int,
    block: int,
) -> None:
    firsts = memory.ints(starts)
    for rows, keys in _tiles(firsts, memory.ints(ends), len(k), tile, block):
        columns = keys[None, :] - firsts[rows][:, None]
        _store_scores(memory, logits, rows, columns, _scores(memory, q, k, rows, keys, heads))


def _masked(
    memory: KernelMemory, *, logits: torch.Tensor, starts: torch.Tensor, ends: torch.Tensor
) -> None:
    columns = np.arange(logits.shape[1])[None, :]
    outside = (columns < memory.ints(starts)[:, None]) | (columns >= memory.ints(ends)[:, None])
    rows, places = np.nonzero(outside)
    memory.store("logits", logits, np.full(len(rows), -np.inf), rows, places)


_PACKED = ModelKernel("qsa_mqa_prefill", _packed, _SOURCE.format(_PACKED_NAME))
_RELATIVE = ModelKernel("qsa_mqa_prefill_relative", _relative, _SOURCE.format(_RELATIVE_NAME))
_MASK = ModelKernel("qsa_mqa_mask", _masked, _SOURCE.format(_MASK_NAME))
