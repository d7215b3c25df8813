"""Selection of the best keys of each query by a plan, written as slots: sglang's second version.

Source: sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/topk_v2.cuh. Long rows are selected by a pool of
clusters, which works off the rows that the plan lists, with the lengths that stand there; a second
kernel selects short rows, and writes as slots what the pool has left in the output of each row
that is longer than the plan's threshold. A batch of as few rows as there are clusters needs no
plan: then none is written and none is read.

Both limits are scaled down to cases, as the number of keys is: there is one cluster, and the
thresholds, which begin at 24576 keys, are 0. An engine that leaves a plan out because its rows are
shorter than the real thresholds would be wronged; none does. Left out are ragged rows, packed rows
and pools of keys, and what makes the scores.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory
from fuzzgraph.kernel_models.sparse_indexer import best_keys_of_row, store_chosen

__all__ = ["PLANNING_CLUSTERS", "plan_topk", "transform_planned"]

_PLANNED_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/topk_v2.cuh"
PLANNING_CLUSTERS = 1
"""Clusters of the pool (kNumPersistentClusters): of a GPU 15 to 33."""
_MOST_PLANNED_ROWS = 512  # kClusterMaxBatch
_LEAST_THRESHOLD = 0  # kClusterFloor, of a GPU 32768 or 65536
_MOST_PLANNED_KEYS = 2048  # kMaxTopK
_PLAN_WIDTHS = (2, 4)
"""Integers of an entry of the plan: 4 up to 0.5.14, of which the last two order the pool's work."""
_LISTS = (
    "metadata must be planned for these lengths: it lists each row beyond its threshold, with its"
    " length (sglang topk.py, topk_transform_paged_v2)"
)
_NOT_NEGATIVE = "seq_lens must not be negative"


def plan_topk(seq_lens: Tensor1, metadata: Tensor2, static_cluster_threshold: int) -> None:
    """Write which rows the pool selects; nothing where the batch needs no plan.

    Args:
        seq_lens: int32 [B] keys of each row.
        metadata: int32 [B + 1, 2 or 4] threshold and number of rows; behind them row and length
            of each row that is longer.
        static_cluster_threshold: 0 or less leaves it to the kernel.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("topk_plan", _PLANNED_SOURCE)
    _check_lengths_and_plan(call, seq_lens, metadata, len(seq_lens))
    threshold = max(static_cluster_threshold, _LEAST_THRESHOLD)
    launch(_PLANNER, seq_lens=seq_lens, metadata=metadata, threshold=threshold)


def transform_planned(
    scores: Tensor2,
    seq_lens: Tensor1,
    page_table: Tensor2 | None,
    page_indices: Tensor2,
    page_size: int,
    metadata: Tensor2,
    raw_indices: Tensor2 | None = None,
) -> None:
    """The slots of each row's best keys, as many as the output has columns; -1 behind them.

    Args:
        scores: float32 [B, N]; read in rows with more keys than columns.
        seq_lens: int32 [B] keys of each row.
        page_table: int32 [B, pages]; without it the output is the keys' places in their rows.
        page_indices: int32 [B, K] the output; raw_indices: the places beside the slots.
        page_size: keys of a page, a power of two.
        metadata: of `plan_topk` for the same lengths; a row that it leaves out is not selected.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("topk_transform_paged", _PLANNED_SOURCE)
    rows = len(scores)
    call.needs_dtype("scores", scores, torch.float32)
    call.needs_contiguous_last("scores", scores)
    aligned = rows < 2 or scores.stride(0) % 4 == 0
    call.needs(aligned, "score_stride must be a multiple of 4", list(scores.stride()))
    _check_lengths_and_plan(call, seq_lens, metadata, rows)
    call.needs_dtype("page_table", page_table, torch.int32)
    call.needs_shape("page_table", page_table, rows, None)
    call.needs_contiguous_last("page_table", page_table)
    topk = page_indices.shape[1]
    for name, tensor in (("page_indices", page_indices), ("raw_indices", raw_indices)):
        if tensor is not None:
            call.needs_dtype(name, tensor, torch.int32)
            call.needs_shape(name, tensor, rows, topk)
            call.needs_contiguous(name, tensor)
    both = raw_indices is None or page_table is not None
    call.needs(both, "raw_indices requires a page table", "none")
    power = page_size > 0 and not page_size & (page_size - 1)
    call.needs(power, "page_size must be a power of two", page_size)
    rule = f"topk must be positive and at most {_MOST_PLANNED_KEYS}"
    call.needs(0 < topk <= _MOST_PLANNED_KEYS, rule, topk)
    launch(
        _PLANNED_PLACES if page_table is None else _PLANNED_TOPK,
        scores=scores,
        seq_lens=seq_lens,
        page_table=page_table,
        page_size=page_size,
        metadata=metadata,
        slots=page_indices,
        places=raw_indices,
    )


def _check_lengths_and_plan(
    call: Call, seq_lens: torch.Tensor, metadata: torch.Tensor, rows: int
) -> None:
    call.needs_dtype("seq_lens", seq_lens, torch.int32)
    call.needs_shape("seq_lens", seq_lens, rows)
    call.needs_contiguous("seq_lens", seq_lens)
    call.needs_dtype("metadata", metadata, torch.int32)
    call.needs_shape("metadata", metadata, rows + 1, None)
    width = metadata.shape[1]
    call.needs(width in _PLAN_WIDTHS, "an entry of metadata must have 2 integers or 4", width)
    call.needs_contiguous("metadata", metadata)


def _follows_plan(rows: int) -> bool:
    return PLANNING_CLUSTERS < rows <= _MOST_PLANNED_ROWS


def _plan_rows(
    memory: KernelMemory, *, seq_lens: torch.Tensor, metadata: torch.Tensor, threshold: int
) -> None:
    lens = memory.ints(seq_lens)
    _check_signs(memory, lens)
    if not _follows_plan(len(lens)):
        return  # too few rows for a plan, or more than one holds
    longer = np.flatnonzero(lens > threshold)
    entries = np.zeros((1 + len(longer), metadata.shape[1]), dtype=np.int64)
    entries[0, :2] = threshold, len(longer)
    entries[1:, 0], entries[1:, 1] = longer, lens[longer]
    # What stands behind the rows that are listed nobody writes.
    memory.store("metadata", metadata, entries, np.arange(len(entries)))


def _check_signs(memory: KernelMemory, lens: Ints) -> None:
    for row in np.flatnonzero(lens < 0)[:1]:
        memory.misused("seq_lens", _NOT_NEGATIVE, f"{lens[row]} in row {row}")


def _items_planned(memory: KernelMemory, metadata: torch.Tensor, lens: Ints) -> tuple[int, Ints]:
    """(threshold, [n, 2] row and length) that a plan holds, of rows that there are."""
    entries = memory.ints(metadata)[:, :2]
    threshold, count = (int(each) for each in entries[0])
    listed = entries[1 : 1 + max(0, min(count, len(lens)))]
    expected = [(row, length) for row, length in enumerate(lens.tolist()) if length > threshold]
    if len(listed) != count or sorted(map(tuple, listed.tolist())) != expected:
        got = f"{[tuple(each) for each in listed.tolist()]} where {expected} are beyond {threshold}"
        memory.misused("metadata", _LISTS, got)
    return threshold, listed


def _run_planned_topk(
    memory: KernelMemory,
    *,
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor | None,
    page_size: int,
    metadata: torch.Tensor,
    slots: torch.Tensor,
    places: torch.Tensor | None,
) -> None:
    lens, topk = memory.ints(seq_lens), slots.shape[1]
    _check_signs(memory, lens)
    threshold = int(lens.max(initial=0))
    if _follows_plan(len(lens)):
        threshold, listed = _items_planned(memory, metadata, lens)
        for row, length in listed.tolist():
            # A plan of nothing, whose numbers are any; what it lists is judged above.
            if 0 <= row < len(lens) and 0 <= length <= scores.shape[1]:
                left = best_keys_of_row(memory, scores, row, length, topk)
                store_chosen(memory, "page_indices", slots, row, left)
    for row, length in enumerate(lens.tolist()):
        if length < 0:
            continue
        if topk < length and threshold < length:
            at = np.full(topk, row), np.arange(topk)
            chosen = memory.entries("page_indices", slots, *at)
        else:
            chosen = best_keys_of_row(memory, scores, row, length, topk)
        found = chosen
        if page_table is not None:
            kept = np.maximum(chosen, 0)
            pages = memory.entries(
                "page_table", page_table, np.full_like(chosen, row), kept // page_size
            )
            found = np.where(chosen < 0, chosen, pages * page_size + kept % page_size)
        store_chosen(memory, "page_indices", slots, row, found)
        if places is not None:
            store_chosen(memory, "raw_indices", places, row, chosen)


_PLANNER = ModelKernel("topk_plan", _plan_rows, _PLANNED_SOURCE, plans=("metadata",))
_PLANNED_TOPK = ModelKernel(
    "topk_transform_paged", _run_planned_topk, _PLANNED_SOURCE, plans=("metadata",)
)
_PLANNED_PLACES = ModelKernel(
    "topk_transform_places", _run_planned_topk, _PLANNED_SOURCE, plans=("metadata",)
)
"""Compiled apart: it looks no page up."""
