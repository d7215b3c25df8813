"""AITER's decode over pages that a CSR lists.

Source: ROCm/aiter, csrc/cpp_itfs/pa/pa_ragged.py, .cpp.jinja and .cuh, 2026. Left out are ALiBi,
quantised outputs and several query tokens of a row: `KernelNotModelled`.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.aiter.csr import ALSO, HALVES, csr_keys, csr_length, kernel_scalar
from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3, Tensor4
from fuzzgraph.kernel_models.attention import Cache, Row, Softmax, attend, rows_between
from fuzzgraph.kernel_models.checks import Call, check_offsets
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["paged_attention_ragged"]

_RAGGED = "ROCm/aiter, csrc/cpp_itfs/pa/pa_ragged.py and pa_ragged.cpp.jinja, 2026"
_FLOAT_BYTES, _HALF_BYTES = 4, 2
_LEAST_COLUMNS = 64
"""Of a head that the kernel is compiled for."""


def paged_attention_ragged(
    out: Tensor3,
    workspace_buffer: torch.Tensor,
    query: Tensor3,
    key_cache: Tensor4,
    value_cache: Tensor4,
    scale: float,
    kv_indptr: Tensor1,
    kv_page_indices: Tensor1,
    kv_last_page_lens: Tensor1,
    block_size: int,
    max_num_partitions: int,
    alibi_slopes: torch.Tensor | None,
    kv_cache_dtype: str,
    kv_cache_layout: str,
    logits_soft_cap: float,
    k_scale: torch.Tensor,
    v_scale: torch.Tensor,
    fp8_out_scale: torch.Tensor | None = None,
    partition_size: int = 256,
    mtp: int = 1,
    q_scale: torch.Tensor | None = None,
) -> None:
    """Attention of one query token of each row over the pages that a CSR lists for it.

    Args:
        out, query: [B, Hq, D].
        workspace_buffer: two floats and D numbers of 16 bits, which queries have, for each of
            B * Hq * max_num_partitions.
        key_cache, value_cache: [pages, block_size, Hkv, D] if the layout is `NHD`, else
            [pages, Hkv, block_size, D]. One set of strides serves both: that of the keys.
        kv_indptr: int32 [B + 1] pages of each row; kv_page_indices: int32.
        kv_last_page_lens: int32 [B]; not read where a page holds one key.
        max_num_partitions: of `partition_size` keys; further keys of a row are not computed.

    Raises:
        KernelRefused: the real host code refuses such a call, or reads its pointers otherwise.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("paged_attention_ragged", _RAGGED)
    unfollowed = {"alibi_slopes": alibi_slopes, "fp8_out_scale": fp8_out_scale, "mtp": mtp}
    call.leaves_out(unfollowed, {"mtp": 1})
    call.needs_dtype("query", query, *HALVES, *ALSO)
    call.needs_dtype("out", out, *HALVES, *ALSO)
    call.needs_shape("out", out, *query.shape)
    # The pointers of these are read as int32, whatever their tensors hold.
    call.needs_dtype("kv_indptr", kv_indptr, torch.int32)
    call.needs_dtype("kv_page_indices", kv_page_indices, torch.int32)
    call.needs(block_size > 0, "block_size must be positive, to compile a kernel", block_size)
    layouts = ("NHD", "HND")
    call.needs(kv_cache_layout in layouts, f"kv_cache_layout is one of {layouts}", kv_cache_layout)
    known = ("auto", "fp8", "fp8_e4m3", "fp8_e5m2")
    call.needs(kv_cache_dtype in known, f"kv_cache_dtype is one of {known}", kv_cache_dtype)
    quantised = kv_cache_dtype != "auto"
    if not quantised:
        call.needs_dtype("key_cache", key_cache, query.dtype)
        call.needs_dtype("value_cache", value_cache, query.dtype)
    if kv_cache_layout == "HND":
        key_cache, value_cache = key_cache.transpose(1, 2), value_cache.transpose(1, 2)
    heads, columns = query.shape[1:]
    call.needs(
        heads % key_cache.shape[2] == 0,
        "query heads must be a multiple of those of the cache",
        f"{heads} and {key_cache.shape[2]}",
    )
    same = value_cache.stride() == key_cache.stride() and value_cache.shape[-1] == columns
    call.needs(
        same and key_cache.shape[-1] == columns,
        f"keys and values must have {columns} columns and the same strides",
        f"{list(key_cache.shape)} and {list(value_cache.shape)}",
    )
    cells = len(query) * heads * max_num_partitions
    # Narrow heads have their part of the two floats that the narrowest real ones have: else the
    # floats would count for more than the numbers, by which an engine's slack is reckoned.
    needed = cells * columns * (2 * _FLOAT_BYTES + _LEAST_COLUMNS * _HALF_BYTES) // _LEAST_COLUMNS
    held = workspace_buffer.numel() * workspace_buffer.element_size()
    call.needs(held >= needed, f"workspace_buffer must hold {needed} bytes", held)
    launch(
        _AITER_RAGGED,
        out=out,
        query=query,
        key_cache=key_cache,
        value_cache=value_cache,
        scale=scale,
        kv_indptr=kv_indptr,
        kv_page_indices=kv_page_indices,
        kv_last_page_lens=kv_last_page_lens,
        block_size=block_size,
        most_keys=max_num_partitions * partition_size,
        softcap=logits_soft_cap,
        k_scale=k_scale if quantised else None,
        v_scale=v_scale if quantised else None,
        q_scale=q_scale,
    )


def _run_aiter_ragged(
    memory: KernelMemory,
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    scale: float,
    kv_indptr: torch.Tensor,
    kv_page_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    block_size: int,
    most_keys: int,
    softcap: float,
    k_scale: torch.Tensor | None,
    v_scale: torch.Tensor | None,
    q_scale: torch.Tensor | None,
) -> None:
    offsets = memory.entries("kv_indptr", kv_indptr, np.arange(len(query) + 1))
    # Of the list it gets an address: what lies behind its end shows when it is read.
    check_offsets(memory, "kv_indptr", offsets)
    last = kv_last_page_lens if block_size > 1 else None
    rows = []
    for row, first, pages in rows_between(offsets):
        length = csr_length(memory, last, row, pages, block_size)
        if length > most_keys:
            memory.misused(
                "max_num_partitions",
                f"a row may have {most_keys} keys, max_num_partitions times partition_size",
                f"{length} at row {row}",
            )
        keys = csr_keys(
            memory, "kv_page_indices", kv_page_indices, first, min(length, most_keys), block_size
        )
        rows.append(Row(row, 1, keys))
    cache = Cache(key_cache, value_cache, kernel_scalar(k_scale), kernel_scalar(v_scale),
                  ("key_cache", "value_cache"))  # fmt: skip
    softmax = Softmax(scale * kernel_scalar(q_scale), softcap, empty="undefined")
    attend(memory, query, cache, rows, softmax, out)


_AITER_RAGGED = ModelKernel("paged_attention_ragged", _run_aiter_ragged, _RAGGED)
