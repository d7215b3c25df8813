"""Selection of the best keys of each query, as sglang's own kernels do it for sparse attention.

Source: sgl-project/sglang, sgl-kernel/csrc/elementwise/topk.cu and sgl-kernel/python/sgl_kernel/
top_k.py, 2025 to 2026. The kernels are compiled for 512, 1024 or 2048 keys; a case selects fewer,
which no rule of a caller depends on. Left out is what makes the scores (DeepGEMM's logits over a
cache of index keys in FP8).
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2
from fuzzgraph.kernel_models.checks import Call, check_offsets
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = [
    "best_keys",
    "best_keys_of_row",
    "fast_topk_transform_fused",
    "fast_topk_transform_ragged_fused",
    "fast_topk_v2",
    "store_best_keys",
    "store_chosen",
]

_TOPK = "sgl-project/sglang, sgl-kernel/csrc/elementwise/topk.cu, 2025 to 2026"
_NONE = -1
"""Stands in a row behind its last key."""


def fast_topk_v2(
    score: Tensor2, lengths: Tensor1, topk: int, row_starts: Tensor1 | None = None
) -> torch.Tensor:
    """Where the `topk` largest scores of each row stand; -1 behind a row with fewer.

    Args:
        score: float32 [B, N].
        lengths: int32 [B] scores of each row that count.
        row_starts: int32 [B] first of them; 0 where nothing is given.

    Returns:
        int32 [B, topk], counted from the row's start, in no defined order, here ascending.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fast_topk", _TOPK)
    _check_scores(call, score, lengths, row_starts)
    chosen = torch.empty((len(score), topk), dtype=torch.int32, device=score.device)
    launch(_PLAIN_TOPK, score=score, lengths=lengths, row_starts=row_starts, chosen=chosen)
    return chosen


def fast_topk_transform_fused(
    score: Tensor2,
    lengths: Tensor1,
    page_table_size_1: Tensor2,
    cu_seqlens_q: Tensor1,
    topk: int,
    row_starts: Tensor1 | None = None,
) -> torch.Tensor:
    """The slots of the `topk` best keys of each query; -1 behind a query with fewer.

    Args:
        score: float32 [T, N]; lengths: int32 [T]; row_starts: int32 [T].
        page_table_size_1: int32 [B, width] slot of each key of a row.
        cu_seqlens_q: int32 [B + 1] first query of each row; not read where B is T.

    Returns:
        int32 [T, topk], in no defined order, here by position.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fast_topk_transform_fused", _TOPK)
    _check_scores(call, score, lengths, row_starts)
    call.needs_dtype("page_table_size_1", page_table_size_1, torch.int32)
    call.needs_contiguous_last("page_table_size_1", page_table_size_1)
    call.needs_dtype("cu_seqlens_q", cu_seqlens_q, torch.int32)
    call.needs(cu_seqlens_q.is_contiguous(), "cu_seqlens_q must be contiguous", "strides")
    rows = len(cu_seqlens_q) - 1
    call.needs(
        len(page_table_size_1) == rows,
        f"page_table_size_1 must have {rows} rows, one less than cu_seqlens_q has entries",
        len(page_table_size_1),
    )
    call.needs(rows <= len(score), f"there must be a query for each of {rows} rows", len(score))
    slots = torch.empty((len(score), topk), dtype=torch.int32, device=score.device)
    launch(
        _PAGED_TOPK,
        score=score,
        lengths=lengths,
        row_starts=row_starts,
        page_table=page_table_size_1,
        # topk.cu: a row for each query is a decode, which looks no offset up
        cu_seqlens_q=None if row_starts is None and rows == len(score) else cu_seqlens_q,
        slots=slots,
    )
    return slots


def fast_topk_transform_ragged_fused(
    score: Tensor2,
    lengths: Tensor1,
    topk_indices_offset: Tensor1,
    topk: int,
    row_starts: Tensor1 | None = None,
) -> torch.Tensor:
    """`fast_topk_v2` with an offset added to each row's places, those of no key left at -1.

    Args:
        topk_indices_offset: int32 [B].

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fast_topk_transform_ragged_fused", _TOPK)
    _check_scores(call, score, lengths, row_starts)
    call.needs_dtype("topk_indices_offset", topk_indices_offset, torch.int32)
    call.needs(
        len(topk_indices_offset) == len(score),
        f"topk_indices_offset must hold {len(score)} offsets",
        len(topk_indices_offset),
    )
    chosen = torch.empty((len(score), topk), dtype=torch.int32, device=score.device)
    launch(
        _RAGGED_TOPK,
        score=score,
        lengths=lengths,
        row_starts=row_starts,
        offsets=topk_indices_offset,
        chosen=chosen,
    )
    return chosen


def _check_scores(
    call: Call, score: torch.Tensor, lengths: torch.Tensor, row_starts: torch.Tensor | None
) -> None:
    call.needs_dtype("score", score, torch.float32)
    call.needs(score.dim() == 2, "score must be [rows, keys]", list(score.shape))
    call.needs_contiguous_last("score", score)
    call.needs_dtype("lengths", lengths, torch.int32)
    for name, tensor in (("lengths", lengths), ("row_starts", row_starts)):
        if tensor is not None:
            call.needs(tensor.is_contiguous(), f"{name} must be contiguous", "strides")
            rule = f"{name} must hold {len(score)} numbers, as many as score has rows"
            call.needs(list(tensor.shape) == [len(score)], rule, list(tensor.shape))
    call.needs_dtype("row_starts", row_starts, torch.int32)


def best_keys(
    memory: KernelMemory,
    score: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None,
    topk: int,
) -> list[Ints]:
    """Places of each row's best keys, ascending, from the row's start."""
    lens = memory.ints(lengths)
    starts = np.zeros_like(lens) if row_starts is None else memory.ints(row_starts)
    found = []
    for row, (length, start) in enumerate(zip(lens.tolist(), starts.tolist(), strict=True)):
        found.append(best_keys_of_row(memory, score, row, length, topk, start))
    return found


def best_keys_of_row(
    memory: KernelMemory, score: torch.Tensor, row: int, length: int, topk: int, start: int = 0
) -> Ints:
    """Places of one row's best keys, ascending, from the row's start."""
    places: Ints = np.arange(max(0, length))
    if length > topk:  # else the kernel reads no score
        read = memory.numbers("score", score, np.full_like(places, row), start + places)
        places = np.sort(np.argsort(-read, kind="stable")[:topk])
    return places


def store_chosen(
    memory: KernelMemory, name: str, into: torch.Tensor, row: int, chosen: Ints
) -> None:
    """Fill a row with what was chosen, and behind it with what stands for no key."""
    whole = np.full(into.shape[1], _NONE, dtype=np.int64)
    whole[: len(chosen)] = chosen
    memory.store(name, into, whole[None], np.array([row]))


def store_best_keys(
    memory: KernelMemory,
    *,
    score: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None,
    chosen: torch.Tensor,
) -> None:
    """Fill each row of `chosen` with the places of its best keys, ascending."""
    best = best_keys(memory, score, lengths, row_starts, chosen.shape[1])
    for row, places in enumerate(best):
        store_chosen(memory, "indices", chosen, row, places)


def _run_paged_topk(
    memory: KernelMemory,
    *,
    score: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    slots: torch.Tensor,
) -> None:
    rows = np.arange(len(score))
    if cu_seqlens_q is not None:
        offsets = memory.ints(cu_seqlens_q)
        check_offsets(memory, "cu_seqlens_q", offsets, len(score))
        rows = np.searchsorted(offsets, rows, side="right") - 1
    best = best_keys(memory, score, lengths, row_starts, slots.shape[1])
    for query, places in enumerate(best):
        row = np.full_like(places, rows[query])
        found = memory.entries("page_table_size_1", page_table, row, places)
        store_chosen(memory, "dst_page_table", slots, query, found)


def _run_ragged_topk(
    memory: KernelMemory,
    *,
    score: torch.Tensor,
    lengths: torch.Tensor,
    row_starts: torch.Tensor | None,
    offsets: torch.Tensor,
    chosen: torch.Tensor,
) -> None:
    firsts = memory.ints(offsets)
    best = best_keys(memory, score, lengths, row_starts, chosen.shape[1])
    for row, places in enumerate(best):
        store_chosen(memory, "topk_indices_ragged", chosen, row, places + firsts[row])


_PLAIN_TOPK = ModelKernel("fast_topk", store_best_keys, _TOPK)
_PAGED_TOPK = ModelKernel("fast_topk_transform_fused", _run_paged_topk, _TOPK)
_RAGGED_TOPK = ModelKernel("fast_topk_transform_ragged_fused", _run_ragged_topk, _TOPK)
