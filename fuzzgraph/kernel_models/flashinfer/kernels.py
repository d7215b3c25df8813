"""The kernels behind FlashInfer's decode and prefill wrappers: paged and ragged KV.

Those of FlashAttention 3 read offsets and lengths from the plan, all others on the device.

Source: FlashInfer 0.6.18, include/flashinfer/attention/{decode,prefill,variants}.cuh, page.cuh and
hopper/prefill_sm90.cuh.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.attention import (
    Bools,
    Cache,
    Row,
    Softmax,
    attend,
    below_diagonal,
)
from fuzzgraph.kernel_models.checks import check_offsets
from fuzzgraph.kernel_models.flashinfer.plan import Plan, Planned, read_plan
from fuzzgraph.kernel_models.launch import ModelKernel
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["DECODE", "PREFILL", "PREFILL_SM90", "RAGGED"]

_SOURCE = "FlashInfer 0.6.12, include/flashinfer/attention/prefill.cuh and decode.cuh"

_SMALLEST_ITEM = 128
"""Keys of the smallest work item (scheduler.cuh, min_kv_chunk_size and its like)."""


@dataclass(frozen=True, slots=True)
class _Masking:
    """Scalars of a launch that decide what a query sees, frozen by a graph."""

    causal: bool
    window_left: int
    windowed: bool
    """Whether the plan chose the kernel that masks a window key by key. Others leave out only what
    no query of a tile sees."""
    tile: int
    """Queries times heads of a group that a tile of the plan holds."""
    softcap: float
    capped: bool
    """Whether the plan chose the kernel that caps logits."""


def _flashinfer_paged(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: torch.Tensor,
    rows: int,
    qo_indptr: torch.Tensor | None,
    paged_kv_indptr: torch.Tensor,
    paged_kv_indices: torch.Tensor,
    paged_kv_last_page_len: torch.Tensor,
    custom_mask: torch.Tensor | None,
    mask_indptr: torch.Tensor | None,
    sm_scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    planned: Planned | None = None,
    **scalars: Any,
) -> None:
    """Caches are [pages, page_size, heads, columns], by their strides in any layout.

    Args:
        planned: what the plan was made for; None if unknown.
    """
    work = _followed(memory, plan, rows, planned)
    if work is None:
        return
    page_size = k_cache.shape[1]
    masking = _Masking(**scalars)
    if not _as_planned(memory, planned, q, k_cache, v_cache, page_size):
        return
    _reach_is_planned(memory, planned, masking.window_left)
    pages = _first(memory, "paged_kv_indptr", paged_kv_indptr, rows + 1)
    check_offsets(memory, "paged_kv_indptr", pages, len(paged_kv_indices))
    held = np.diff(pages)
    last = _first(memory, "paged_kv_last_page_len", paged_kv_last_page_len, rows)
    wrong = np.flatnonzero((held > 0) & ((last < 1) | (last > page_size)))
    if len(wrong):
        rule = f"paged_kv_last_page_len must be 1 to {page_size} for a row with pages"
        memory.misused("paged_kv_last_page_len", rule, f"{last[wrong[0]]} for row {wrong[0]}")
    # page.cuh get_length
    lens = np.where(held > 0, (held - 1) * page_size + last, 0).clip(min=0)
    # Offsets that hold no numbers of a batch are recorded above; a launch over them need not end.
    lens = np.minimum(lens, (len(paged_kv_indices) + 1) * page_size)
    if qo_indptr is None:
        _items_are_within(memory, work, lens)
    seen = _LaunchedBatch.of(
        memory, work, qo_indptr, len(q), lens, masking, q.shape[1] // k_cache.shape[2]
    )
    hidden = seen.hidden(memory, custom_mask, mask_indptr)
    keys = _listed(memory, paged_kv_indices, pages, seen.covered, page_size)
    cache = Cache(k_cache, v_cache, names=("k_cache", "v_cache"))
    seen.attend(memory, q, cache, keys, hidden, sm_scale, out, lse)


def _flashinfer_paged_sm90(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    plan: torch.Tensor,
    rows: int,
    paged_kv_indices: torch.Tensor,
    sm_scale: float,
    value_scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    planned: Planned | None = None,
    **scalars: Any,
) -> None:
    """The same by offsets and lengths of the plan (csrc batch_prefill_sm90.cu, PagedParams)."""
    work = _followed(memory, plan, rows, planned)
    if work is None:
        return
    page_size = k_cache.shape[1]
    if not _as_planned(memory, planned, q, k_cache, v_cache, page_size):
        return
    masking = _Masking(**scalars)
    if not masking.windowed:  # LEFT_SLIDING_WINDOW is of the module
        masking = replace(masking, window_left=-1)
    queries = np.diff(work.queries).clip(min=0, max=len(q))
    # Lengths that are no numbers of a batch stray at once; a launch over them need not end.
    lens = work.lens.clip(min=0, max=(len(paged_kv_indices) + 1) * page_size)
    group = q.shape[1] // k_cache.shape[2]
    seen = _LaunchedBatch(work, work.queries[:-1], queries, lens, lens, masking, group)
    hidden = seen.hidden(memory, None, None)
    keys = _listed(memory, paged_kv_indices, work.pages, lens, page_size)
    cache = Cache(k_cache, v_cache, value_scale=value_scale)
    seen.attend(memory, q, cache, keys, hidden, sm_scale, out, lse)


def _flashinfer_ragged(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: torch.Tensor,
    rows: int,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    custom_mask: torch.Tensor | None,
    mask_indptr: torch.Tensor | None,
    sm_scale: float,
    out: torch.Tensor,
    lse: torch.Tensor | None,
    planned: Planned | None = None,
    **scalars: Any,
) -> None:
    work = _followed(memory, plan, rows, planned)
    if work is None:
        return
    masking = _Masking(**scalars)
    if not _as_planned(memory, planned, q, k[:, None], v[:, None], 1):
        return
    _reach_is_planned(memory, planned, masking.window_left)
    offsets = _first(memory, "kv_indptr", kv_indptr, rows + 1)
    check_offsets(memory, "kv_indptr", offsets, len(k))
    lens = np.diff(offsets).clip(min=0)
    seen = _LaunchedBatch.of(
        memory, work, qo_indptr, len(q), lens, masking, q.shape[1] // k.shape[1]
    )
    hidden = seen.hidden(memory, custom_mask, mask_indptr)
    keys = tuple((low + np.arange(n),) for low, n in zip(offsets[:-1], seen.covered, strict=True))
    cache = Cache(k, v, names=("k", "v"))
    seen.attend(memory, q, cache, keys, hidden, sm_scale, out, lse)


def _followed(
    memory: KernelMemory, plan: torch.Tensor, rows: int, planned: Planned | None
) -> Plan | None:
    return read_plan(memory, plan, rows, None if planned is None else planned.mark)


def _as_planned(
    memory: KernelMemory,
    planned: Planned | None,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    page_size: int,
) -> bool:
    """Items, tiles and room for partial results are those of the sizes that were planned.

    Returns:
        Whether queries and keys have products at all; what a kernel makes of others is undefined.
    """
    there = {
        "num_qo_heads": q.shape[1], "num_kv_heads": k_cache.shape[2], "page_size": page_size,
        "head_dim_qk": q.shape[2], "head_dim_vo": v_cache.shape[3],
    }  # fmt: skip
    for name, size in ({} if planned is None else planned.sizes).items():
        if name in there and size != there[name]:
            rule = f"{name} of a plan must be that of the run, {there[name]}"
            memory.misused(name, rule, str(size))
    fits = q.shape[2] == k_cache.shape[3] and not q.shape[1] % max(k_cache.shape[2], 1)
    if not fits:
        rule = f"q must have the keys' {k_cache.shape[3]} columns, and whole groups of heads"
        memory.misused("q", rule, str(list(q.shape)))
    return fits


def _reach_is_planned(memory: KernelMemory, planned: Planned | None, window_left: int) -> None:
    """PrefillSplitQOKVIndptr: a plan with a window has items for what lies in it alone."""
    reach = -1 if planned is None else planned.sizes.get("window_left", -1)
    if reach >= 0 and not 0 <= window_left <= reach:
        rule = f"window_left of a run must not reach beyond the plan's, {reach}"
        memory.misused("window_left", rule, str(window_left))


def _listed(
    memory: KernelMemory, indices: torch.Tensor, pages: Ints, counts: Ints, page_size: int
) -> tuple[tuple[Ints, ...], ...]:
    """For each row where its first keys lie: pages of the list, and slots within."""
    positions = _up_to(counts)
    entries = np.repeat(pages[:-1], counts) + positions // page_size
    slots = memory.entries("paged_kv_indices", indices, entries)
    ends = np.cumsum(counts)[:-1]
    return tuple(zip(np.split(slots, ends), np.split(positions % page_size, ends), strict=True))


def _items_are_within(memory: KernelMemory, work: Plan, lens: Ints) -> None:
    """decode.cuh: an item behind a row's keys has a length below 0, which is taken as unsigned."""
    planned = -(-np.maximum(np.diff(work.pages), 1) // _SMALLEST_ITEM)
    device = -(-np.maximum(lens, 1) // _SMALLEST_ITEM)
    beyond = np.flatnonzero(planned > device)
    if len(beyond):
        row = int(beyond[0])
        got = f"{np.diff(work.pages)[row]} pages planned for row {row}, which has {lens[row]} keys"
        memory.misused("plan", "plan must not have work items behind the keys of a row", got)


@dataclass(frozen=True, slots=True)
class _LaunchedBatch:
    """The rows of a launch, between what was planned and what lies on the device."""

    work: Plan
    first: Ints
    """[rows] first query of each."""
    queries: Ints
    """[rows] how many it has on the device."""
    lens: Ints
    """[rows] its keys on the device."""
    covered: Ints
    """[rows] its keys, from the first on, that work items cover."""
    masking: _Masking
    group: int

    @classmethod
    def of(
        cls,
        memory: KernelMemory,
        work: Plan,
        qo_indptr: torch.Tensor | None,
        tokens: int,
        lens: Ints,
        masking: _Masking,
        group: int,
    ) -> _LaunchedBatch:
        rows = len(lens)
        if qo_indptr is None:
            offsets = np.arange(rows + 1)
        else:
            offsets = _first(memory, "qo_indptr", qo_indptr, rows + 1)
            check_offsets(memory, "qo_indptr", offsets, tokens)
        queries = np.diff(offsets).clip(min=0, max=tokens)
        planned = np.maximum(work.lens, 0)
        covered = np.minimum(lens, planned)
        if masking.window_left >= 0:
            # Items count from the first key that the window of a row's first query reaches.
            start = (lens - queries - masking.window_left).clip(min=0)
            covered = np.minimum(lens, start + planned)
        return cls(work, offsets[:-1], queries, lens, covered, masking, group)

    def hidden(
        self, memory: KernelMemory, mask: torch.Tensor | None, indptr: torch.Tensor | None
    ) -> list[Bools | None]:
        """For each row [queries, covered] the keys that a query does not see."""
        starts = None
        if mask is not None and indptr is not None:
            starts = _first(memory, "mask_indptr", indptr, len(self.lens))
        found: list[Bools | None] = []
        for row, (queries, keys) in enumerate(zip(self.queries, self.lens, strict=True)):
            # A kernel with a mask has no other (prefill.py run, mask_mode).
            causal = self.masking.causal and starts is None
            hidden = self._by_place(int(queries), int(keys), causal)
            if mask is not None and starts is not None:
                shown = _mask_bits(memory, mask, int(starts[row]), int(queries), int(keys))
                hidden = ~shown if hidden is None else hidden | ~shown
            found.append(None if hidden is None else hidden[:, : self.covered[row]])
        return found

    def _by_place(self, queries: int, keys: int, causal: bool) -> Bools | None:
        masking = self.masking
        if not causal and masking.window_left < 0:
            return None
        left = masking.window_left if masking.windowed else -1
        hidden = below_diagonal(queries, keys, (left, 0 if causal else -1))
        if masking.window_left >= 0:
            # prefill.cuh kv_start_idx: of the tile that the query lies in
            tile = np.arange(queries) * self.group // masking.tile * masking.tile // self.group
            start = keys + tile - queries - masking.window_left
            hidden |= np.arange(keys)[None, :] < start[:, None]
        return hidden

    def attend(
        self,
        memory: KernelMemory,
        q: torch.Tensor,
        cache: Cache,
        keys: tuple[tuple[Ints, ...], ...],
        hidden: list[Bools | None],
        sm_scale: float,
        out: torch.Tensor,
        lse: torch.Tensor | None,
    ) -> None:
        """Queries lie where the device's offsets say, their outputs where the plan's do."""
        softcap = self.masking.softcap
        if softcap and not self.masking.capped:
            rule = "logits_soft_cap must be given to plan, which chooses the kernel"
            memory.misused("logits_soft_cap", rule, f"{softcap} at run and none at plan")
            softcap = 0.0
        planned = np.diff(self.work.queries)
        rows = [
            Row(
                int(self.first[row]),
                int(min(self.queries[row], planned[row])),
                keys[row],
                None if unseen is None else unseen[: planned[row]],
                into=int(self.work.queries[row]),
            )
            for row, unseen in enumerate(hidden)
        ]
        softmax = Softmax(sm_scale, softcap, lse_base="2")
        attend(memory, q, cache, rows, softmax, out, None if lse is None else lse.transpose(0, 1))


def _first(memory: KernelMemory, name: str, tensor: torch.Tensor, count: int) -> Ints:
    """The first `count` integers; a kernel reads so many, whatever there are."""
    if len(tensor) >= count:
        return memory.ints(tensor)[:count]
    return memory.entries(name, tensor, np.arange(count))


def _up_to(lens: Ints) -> Ints:
    """0 to n - 1 for each n, one after the other."""
    return np.concatenate([np.arange(0), *(np.arange(n) for n in lens)])


def _mask_bits(
    memory: KernelMemory, mask: torch.Tensor, start: int, queries: int, keys: int
) -> Bools:
    """[queries, keys] what the packed mask shows, lowest bit first (variants.cuh LogitsMask)."""
    bits = np.arange(queries * keys)
    held = memory.entries("custom_mask", mask, start + bits // 8)
    shown: Bools = ((held >> (bits % 8)) & 1).astype(bool).reshape(queries, keys)
    return shown


DECODE = ModelKernel("BatchDecodeWithPagedKVCache", _flashinfer_paged, _SOURCE)
PREFILL = ModelKernel("BatchPrefillWithPagedKVCache", _flashinfer_paged, _SOURCE)
PREFILL_SM90 = ModelKernel("BatchPrefillWithPagedKVCache", _flashinfer_paged_sm90, _SOURCE)
RAGGED = ModelKernel("BatchPrefillWithRaggedKVCache", _flashinfer_ragged, _SOURCE)
