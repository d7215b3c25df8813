"""Rows written to their slots in caches by page: DeepSeek V4's, and keys of indexers.

Source: sglang 0.5.10 to 0.5.23, csrc/deepseek_v4/fused_norm_rope_v2.cuh and store.cuh,
csrc/dsa/fused_store_index_cache.cuh. Left out is what a compressed key goes through, its norm and
its rotation: the model adds a row of the table of rotations to its last columns, so that the
position still decides. Keys of an indexer are quantised as they are stored; other rows are not.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.fp8 import SCALE_BYTES, pages_of_rows, quantised
from fuzzgraph.kernel_models.kv_compressor import PLAN_BYTES, plan_numbers
from fuzzgraph.kernel_models.kv_compressor_extend import ends_of_groups
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["store_compressed", "store_index_keys", "store_rows"]

_STORE_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/fused_norm_rope_v2.cuh"
_ROWS_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/store.cuh"
_KEYS_SOURCE = "sglang 0.5.10 to 0.5.23, csrc/dsa/fused_store_index_cache.cuh"
_INDEX_WIDTH = 128
"""Columns of an indexer's keys, by which the store of compressed keys knows them (kIsIndexer)."""


def store_compressed(
    kv: torch.Tensor,
    plan: torch.Tensor,
    norm_weight: torch.Tensor,
    norm_eps: float,
    freq_cis: torch.Tensor,
    out_loc: torch.Tensor,
    kvcache: torch.Tensor,
    is_decode: bool,
    compress_ratio: int,
    *,
    page_size: int,
    width: int,
    dtype: torch.dtype,
    slot_dtype: torch.dtype,
    rotated: int | None = None,
    fp8_pages: bool = True,
) -> None:
    """Write the key of each group that is whole to its slot.

    Args:
        kv: [B, D] of `compress_decode` or `compress_extend`.
        freq_cis: [positions, R]; the row of a group's first position is added to its key's end.
        out_loc: [B] slot of each row's key; of a plan of several tokens a row that of each token.
        kvcache: uint8 [pages, bytes]; rows of `kv`'s dtype one after the other. With 128 columns
            those of float8_e4m3fn, and behind a page's rows a float32 scale for each.
        page_size: slots of a page; width: D; dtype: of `kv`; slot_dtype: of `out_loc`, int32 in its
            first releases; rotated: R, None for any; fp8_pages: whether the pages are those of
            DeepSeek V4 in FP8, for which rows of `kv`'s dtype stand here. The kernel is compiled
            for these.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("compress_norm_rope_store", _STORE_SOURCE)
    call.needs_dtype("out_loc", out_loc, slot_dtype)
    call.needs_dtype("plan", plan, torch.uint8)
    call.needs_dtype("kvcache", kvcache, torch.uint8)
    for name, tensor in (("kv", kv), ("norm_weight", norm_weight)):
        call.needs_dtype(name, tensor, dtype)
    call.needs_dtype("freq_cis", freq_cis, torch.float32)
    call.needs_shape("kv", kv, None, width)
    rows = kv.shape[0]
    call.needs_shape("plan", plan, rows, PLAN_BYTES)
    call.needs_shape("norm_weight", norm_weight, width)
    call.needs_shape("freq_cis", freq_cis, None, rotated)
    columns = freq_cis.shape[1]
    call.needs(columns <= width, f"a key of {width} columns cannot be rotated", columns)
    call.needs_shape("out_loc", out_loc, rows if is_decode else None)
    slots = out_loc.shape[0]
    call.needs(slots >= rows, f"out_loc must have {rows} entries or more", slots)
    call.needs_shape("kvcache", kvcache, None, None)
    for name, tensor in (("out_loc", out_loc), ("plan", plan), ("kv", kv)):
        call.needs_contiguous(name, tensor)
    indexer = width == _INDEX_WIDTH
    call.needs(fp8_pages, "kvcache must have the pages that the kernel is compiled for", "FP8")
    entry = page_size * (width + SCALE_BYTES if indexer else width * kv.element_size())
    strides = list(kvcache.stride())
    call.needs(strides == [entry, 1], f"kvcache must have the strides {[entry, 1]}", strides)
    kvcache = _whole_pages(kvcache)
    launch(
        _STORES[indexer, bool(is_decode)],
        kv=kv,
        plan=plan,
        positions=freq_cis,
        out_loc=out_loc,
        cache=kvcache if indexer else kvcache.view(kv.dtype),
        ratio=compress_ratio,
        page_size=page_size,
        is_decode=bool(is_decode),
    )


def store_rows(
    input: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    page_size: int,
    type: str,
    **others: Any,
) -> None:
    """`fused_store_cache`: write rows to their slots, here in their own dtype.

    Args:
        input: [n, D]; cache: [pages, page_size * D]; indices: int [n] slots.
        type: of the cache; "flashmla" is followed.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: it has arguments that this model does not follow.
    """
    call = Call("fused_store_cache", _ROWS_SOURCE)
    call.leaves_out({"type": type, **others}, {"type": "flashmla", "layout": "v4"})
    call.needs_dtype("cache", cache, input.dtype)
    call.needs_dtype("indices", indices, torch.int32, torch.int64)
    call.needs_shape("input", input, None, None)
    call.needs_shape("cache", cache, None, None)
    power = page_size > 0 and not page_size & (page_size - 1)
    call.needs(power, "page_size must be a power of two", page_size)
    room = page_size * input.shape[1]
    call.needs(cache.shape[1] >= room, f"a page must hold {room} numbers", cache.shape[1])
    call.needs_shape("indices", indices, input.shape[0])
    launch(_ROW_STORE, rows=input, cache=cache, slots=indices, page_size=page_size)


def store_index_keys(
    input: torch.Tensor,
    cache: torch.Tensor,
    indices: torch.Tensor,
    *,
    page_size: int,
    dtype: torch.dtype,
    slot_dtype: torch.dtype,
) -> None:
    """`fused_store_index_k_cache`: quantise keys of an indexer and write them to their slots.

    Args:
        input: [n, 128]; indices: [n] slots.
        cache: uint8 [pages, page_size * 132]; a page's rows of float8_e4m3fn, and behind them a
            float32 scale for each.
        page_size: slots of a page; dtype: of `input`; slot_dtype: of `indices`. The kernel is
            compiled for these.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fused_store_index_k_cache", _KEYS_SOURCE)
    power = page_size > 0 and not page_size & (page_size - 1)
    call.needs(power, "page_size must be a power of two", page_size)
    call.needs_dtype("input", input, dtype)
    call.needs_dtype("cache", cache, torch.uint8)
    call.needs_dtype("indices", indices, slot_dtype)
    call.needs_shape("input", input, None, _INDEX_WIDTH)
    call.needs_shape("cache", cache, None, None)
    call.needs_shape("indices", indices, input.shape[0])
    entry = page_size * (_INDEX_WIDTH + SCALE_BYTES)
    strides = list(cache.stride())
    call.needs(strides == [entry, 1], f"cache must have the strides {[entry, 1]}", strides)
    for name, tensor in (("input", input), ("indices", indices)):
        call.needs_contiguous(name, tensor)
    cache = _whole_pages(cache)
    launch(_KEY_STORE, keys=input, cache=cache, slots=indices, page_size=page_size)


def _whole_pages(cache: torch.Tensor) -> torch.Tensor:
    """Pages as far as their stride: a kernel is compiled for that, and knows no other width.

    The last page may end before; then only those that lie whole in the storage are taken.
    """
    pages, entry = cache.shape[0], cache.stride(0)
    if cache.shape[1] == entry:
        return cache
    there = cache.untyped_storage().nbytes() - int(cache.storage_offset())
    return cache.as_strided((min(pages, there // entry), entry), (entry, 1))


# ---- the bodies


def _store_groups(
    memory: KernelMemory,
    *,
    kv: torch.Tensor,
    plan: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    cache: torch.Tensor,
    ratio: int,
    page_size: int,
    is_decode: bool,
) -> None:
    rows, slots = _whole_keys(memory, kv, plan, positions, out_loc, ratio, is_decode)
    width = rows.shape[-1]
    by_slot = cache[:, : page_size * width].unflatten(1, (page_size, width))
    if len(slots):
        memory.store("kvcache", by_slot, rows, slots // page_size, slots % page_size)


def _store_index_keys(
    memory: KernelMemory,
    *,
    kv: torch.Tensor,
    plan: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    cache: torch.Tensor,
    ratio: int,
    page_size: int,
    is_decode: bool,
) -> None:
    found = _whole_keys(memory, kv, plan, positions, out_loc, ratio, is_decode)
    _store_quantised(memory, "kvcache", cache, *found, page_size)


def _whole_keys(
    memory: KernelMemory,
    kv: torch.Tensor,
    plan: torch.Tensor,
    positions: torch.Tensor,
    out_loc: torch.Tensor,
    ratio: int,
    is_decode: bool,
) -> tuple[npt.NDArray[np.float64], Ints]:
    """([n, D] the keys of groups that are whole, placed; [n] their slots)."""
    if is_decode:
        lens = plan_numbers(memory, plan)[:, 0]
        whole = tokens = np.flatnonzero(lens % ratio == 0)
        lens = lens[whole]
    else:
        whole, lens, tokens = ends_of_groups(memory, plan)
    rows = memory.numbers("kv", kv, whole)
    rows[:, -positions.shape[1] :] += memory.numbers("freq_cis", positions, lens - ratio)
    return rows, memory.entries("out_loc", out_loc, tokens)


def _store_by_slot(
    memory: KernelMemory,
    *,
    rows: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    page_size: int,
) -> None:
    width = rows.shape[-1]
    by_slot = cache[:, : page_size * width].unflatten(1, (page_size, width))
    places = memory.ints(slots)
    memory.store("cache", by_slot, rows, places // page_size, places % page_size)


def _store_keys(
    memory: KernelMemory,
    *,
    keys: torch.Tensor,
    cache: torch.Tensor,
    slots: torch.Tensor,
    page_size: int,
) -> None:
    rows = memory.numbers("input", keys, np.arange(len(keys)))
    _store_quantised(memory, "cache", cache, rows, memory.ints(slots), page_size)


def _store_quantised(
    memory: KernelMemory,
    name: str,
    cache: torch.Tensor,
    rows: npt.NDArray[np.float64],
    slots: Ints,
    page_size: int,
) -> None:
    if not len(slots):
        return
    values, scales = pages_of_rows(cache, page_size)
    found, scale = quantised(rows)
    at = slots // page_size, slots % page_size
    memory.store(name, values, found, *at)
    memory.store(name, scales, scale, *at)


_STORE = "compress_norm_rope_store"
_STORES = {
    (False, True): ModelKernel(_STORE, _store_groups, _STORE_SOURCE),
    (True, True): ModelKernel(_STORE, _store_index_keys, _STORE_SOURCE),
    (False, False): ModelKernel(_STORE, _store_groups, _STORE_SOURCE, plans=("plan",)),
    (True, False): ModelKernel(_STORE, _store_index_keys, _STORE_SOURCE, plans=("plan",)),
}
"""By whether it is an indexer's, and whether it is of a decode, whose plan has a row's own line."""
_ROW_STORE = ModelKernel("fused_store_cache", _store_by_slot, _ROWS_SOURCE)
_KEY_STORE = ModelKernel("fused_store_index_k_cache", _store_keys, _KEYS_SOURCE)
