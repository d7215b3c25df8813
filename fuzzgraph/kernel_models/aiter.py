"""AITER's attention over paged keys and values: ragged decode, unified, and latent.

Sources, ROCm/aiter as of 2026: csrc/cpp_itfs/pa/pa_ragged.py, .cpp.jinja and .cuh;
aiter/ops/triton/attention/unified_attention.py and its kernels; aiter/mla.py and
csrc/py_itfs_cu/asm_mla.cu. Left out, as `KernelNotModelled`: ALiBi, quantised outputs, several
query tokens of a row in the ragged kernel, biases among queries, work items of a persistent latent
decode, and latent context parallelism.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.attention import (
    Cache,
    Row,
    Softmax,
    attend,
    below_diagonal,
    rows_between,
)
from fuzzgraph.kernel_models.checks import Call, check_offsets
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["mla_decode_fwd", "mla_prefill_fwd", "paged_attention_ragged", "unified_attention"]

_RAGGED = "ROCm/aiter, csrc/cpp_itfs/pa/pa_ragged.py and pa_ragged.cpp.jinja, 2026"
_UNIFIED = "ROCm/aiter, aiter/ops/triton/attention/unified_attention.py, 2026"
_LATENT = "ROCm/aiter, aiter/mla.py and csrc/py_itfs_cu/asm_mla.cu, 2026"

_HALVES = (torch.float16, torch.bfloat16)
# The arithmetic of these kernels in float32 does not exist. It is let through, because a case in
# float32 shows smaller differences; no rule of a caller depends on it.
_ALSO = (torch.float32,)
_FP8 = (torch.float8_e4m3fn, torch.float8_e4m3fnuz)
_FLOAT_BYTES, _HALF_BYTES = 4, 2


# ---- paged_attention_ragged


def paged_attention_ragged(
    out: torch.Tensor,
    workspace_buffer: torch.Tensor,
    query: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    scale: float,
    kv_indptr: torch.Tensor,
    kv_page_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
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
    call.needs_dtype("query", query, *_HALVES, *_ALSO)
    call.needs_dtype("out", out, *_HALVES, *_ALSO)
    # The pointers of these are read as int32, whatever their tensors hold.
    call.needs_dtype("kv_indptr", kv_indptr, torch.int32)
    call.needs_dtype("kv_page_indices", kv_page_indices, torch.int32)
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
    needed = cells * (2 * _FLOAT_BYTES + columns * _HALF_BYTES)
    held = workspace_buffer.numel() * workspace_buffer.element_size()
    call.needs(held >= needed, f"workspace_buffer must hold {needed} bytes", held)
    launch(
        _RAGGED_KERNEL,
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


def _run_ragged(
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
    check_offsets(memory, "kv_indptr", offsets, len(kv_page_indices))
    last = kv_last_page_lens if block_size > 1 else None
    rows = []
    for row, first, pages in rows_between(offsets):
        length = _csr_length(memory, last, row, pages, block_size)
        if length > most_keys:
            memory.misused(
                "max_num_partitions",
                f"a row may have {most_keys} keys, max_num_partitions times partition_size",
                f"{length} at row {row}",
            )
        keys = _csr_keys(
            memory, "kv_page_indices", kv_page_indices, first, min(length, most_keys), block_size
        )
        rows.append(Row(row, 1, keys))
    cache = Cache(key_cache, value_cache, _scalar(k_scale), _scalar(v_scale),
                  ("key_cache", "value_cache"))  # fmt: skip
    softmax = Softmax(scale * _scalar(q_scale), softcap, empty="undefined")
    attend(memory, query, cache, rows, softmax, out)


_RAGGED_KERNEL = ModelKernel("paged_attention_ragged", _run_ragged, _RAGGED)


# ---- unified_attention


def unified_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    max_seqlen_k: int,
    softmax_scale: float,
    causal: bool,
    window_size: tuple[int, int],
    block_table: torch.Tensor,
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    alibi_slopes: torch.Tensor | None = None,
    output_scale: torch.Tensor | None = None,
    qq_bias: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> None:
    """Causal attention of new queries over a paged cache, aligned at the last token and key.

    Args:
        q: [T, Hq, D]; out: [T, Hq, Dv].
        k, v: [pages, page_size, Hkv, D or Dv], any strides.
        cu_seqlens_q: [B + 1] first query token of each row.
        max_seqlen_q: 1 says that token i is row i.
        seqused_k: [B] keys of each row, new tokens included.
        max_seqlen_k: chooses a schedule only.
        window_size: its first is how many keys before itself a token sees; -1 is no limit.
        block_table: [B, width], rows with any stride.
        q_descale, k_descale, v_descale: [1] factors of stored numbers.
        sinks: [Hq].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("unified_attention", _UNIFIED)
    unfollowed = {"alibi_slopes": alibi_slopes, "output_scale": output_scale, "qq_bias": qq_bias}
    call.leaves_out(unfollowed, {})
    call.needs(bool(causal), "only causal attention is supported", causal)
    call.needs(
        sinks is None or len(sinks) == q.shape[1],
        f"sinks must hold {q.shape[1]} logits, one for each query head",
        None if sinks is None else len(sinks),
    )
    call.needs(
        q.shape[1] % k.shape[2] == 0,
        "query heads must be a multiple of those of the cache",
        f"{q.shape[1]} and {k.shape[2]}",
    )
    # The kernel walks these by their first strides alone.
    for name, tensor in (("q", q), ("out", out), ("block_table", block_table)):
        call.needs_contiguous_last(name, tensor)
    launch(
        _UNIFIED_KERNEL,
        q=q,
        k=k,
        v=v,
        out=out,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=max_seqlen_q,
        seqused_k=seqused_k,
        scale=softmax_scale,
        window=(window_size[0], 0),
        block_table=block_table,
        softcap=softcap or 0.0,
        q_descale=q_descale,
        k_descale=k_descale,
        v_descale=v_descale,
        sinks=sinks,
    )


def _run_unified(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    seqused_k: torch.Tensor,
    scale: float,
    window: tuple[int, int],
    block_table: torch.Tensor,
    softcap: float,
    q_descale: torch.Tensor | None,
    k_descale: torch.Tensor | None,
    v_descale: torch.Tensor | None,
    sinks: torch.Tensor | None,
) -> None:
    lens = memory.ints(seqused_k)
    offsets = memory.entries("cu_seqlens_q", cu_seqlens_q, np.arange(len(lens) + 1))
    check_offsets(memory, "cu_seqlens_q", offsets, len(q))
    if max_seqlen_q == 1 and (np.diff(offsets) != 1).any():
        rule = "cu_seqlens_q must count one token to a row where max_seqlen_q is 1"
        memory.misused("cu_seqlens_q", rule, f"{offsets.tolist()}")
    rows = []
    for row, first, count in rows_between(offsets):
        length = max(0, int(lens[row]))
        keys = _table_keys(memory, block_table, row, length, k.shape[1])
        rows.append(Row(first, count, keys, below_diagonal(count, length, window)))
    # kernel_unified_attention_2d takes them together or not at all.
    both = k_descale is not None and v_descale is not None
    cache = Cache(
        k, v, _scalar(k_descale if both else None), _scalar(v_descale if both else None), ("k", "v")
    )
    softmax = Softmax(scale * _scalar(q_descale), softcap, sinks, empty="undefined")
    attend(memory, q, cache, rows, softmax, out)


_UNIFIED_KERNEL = ModelKernel("unified_attention", _run_unified, _UNIFIED)


# ---- latent attention


_LATENT_HEADS = (8, 16, 32, 48, 64, 80, 96, 112, 128)
_LATENT_SCHEDULE = ("num_kv_splits", "num_kv_splits_indptr", "intra_batch_mode", "return_logits")
_LATENT_DEFAULTS = {"cp_world_size": 1, "cp_rank": 0, "causal": True}
# What a call in non-persistent mode hands over unread.
_PLAN = ("work_indptr", "work_info_set", "reduce_indptr", "reduce_final_map", "reduce_partial_map")


def mla_decode_fwd(
    q: torch.Tensor,
    kv_buffer: torch.Tensor,
    o: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    page_size: int = 1,
    nhead_kv: int = 1,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    q_scale: torch.Tensor | None = None,
    kv_scale: torch.Tensor | None = None,
    return_lse: bool = False,
    **others: Any,
) -> tuple[torch.Tensor | None, torch.Tensor | None]:
    """Latent attention of new queries over the pages that a CSR lists, aligned at the last ones.

    Args:
        q: [T, H, D], contiguous; H 8 or a multiple of 16.
        kv_buffer: [pages, page_size, 1, D]; its first Dv columns are values.
        o: [T, H, Dv], written.
        qo_indptr, kv_indptr: int32 [B + 1]; kv_indices: int32 pages.
        kv_last_page_lens: int32 [B] keys in each row's last page.
        max_seqlen_q: query tokens of the longest row.
        q_scale, kv_scale: [1] factors of queries and keys that are FP8.

    Returns:
        (partial results, of which the documentation promises nothing, here None; lse float32
        [T, H] with `return_lse`, else None).

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow, e.g. a persistent plan.
    """
    call = Call("mla_decode_fwd", _LATENT)
    unread = _LATENT_SCHEDULE + (() if others.get("work_meta_data") is not None else _PLAN)
    followed = {name: value for name, value in others.items() if name not in unread}
    call.leaves_out(followed, _LATENT_DEFAULTS)
    call.needs(q.is_contiguous(), "q must be contiguous", f"strides {list(q.stride())}")
    heads = o.shape[1]
    call.needs(heads in _LATENT_HEADS, f"query heads are one of {_LATENT_HEADS}", heads)
    lse = torch.empty(o.shape[:2], dtype=torch.float32, device=q.device) if return_lse else None
    _launch_latent(
        _DECODE_KERNEL, call, q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices,
        kv_last_page_lens, max_seqlen_q, page_size, nhead_kv, sm_scale, logit_cap,
        q_scale, kv_scale, lse,
    )  # fmt: skip
    return None, lse


def mla_prefill_fwd(
    q: torch.Tensor,
    kv_buffer: torch.Tensor,
    o: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    sm_scale: float | None = None,
    logit_cap: float = 0.0,
    num_kv_splits: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """What `mla_decode_fwd` computes, for rows with many new tokens.

    Returns:
        (`o`, float32 [T, 1, H, 1] lse).

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("mla_prefill_fwd", _LATENT)
    call.needs(q.is_contiguous(), "q must be contiguous", f"strides {list(q.stride())}")
    tokens, heads = o.shape[:2]
    lse = torch.empty((tokens, heads), dtype=torch.float32, device=q.device)
    _launch_latent(
        _PREFILL_KERNEL, call, q, kv_buffer, o, qo_indptr, kv_indptr, kv_indices,
        kv_last_page_lens, max_seqlen_q, kv_buffer.shape[1], kv_buffer.shape[2], sm_scale,
        logit_cap, None, None, lse,
    )  # fmt: skip
    return o, lse.view(tokens, 1, heads, 1)


def _launch_latent(
    kernel: ModelKernel,
    call: Call,
    q: torch.Tensor,
    kv_buffer: torch.Tensor,
    o: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    page_size: int,
    nhead_kv: int,
    sm_scale: float | None,
    logit_cap: float,
    q_scale: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    lse: torch.Tensor | None,
) -> None:
    """What the host code of both latent kernels checks, and the launch."""
    # asm_mla.cu takes the pointers of these as those of int32.
    for name, tensor in (
        ("qo_indptr", qo_indptr),
        ("kv_indptr", kv_indptr),
        ("kv_indices", kv_indices),
        ("kv_last_page_lens", kv_last_page_lens),
    ):
        call.needs_dtype(name, tensor, torch.int32)
    call.needs_dtype("q", q, torch.bfloat16, *_FP8, *_ALSO)
    call.needs_dtype("kv_buffer", kv_buffer, torch.bfloat16, *_FP8, *_ALSO)
    call.needs(logit_cap <= 0, "logit_cap is not supported", logit_cap)
    call.needs(nhead_kv == 1, "there must be one head of keys", nhead_kv)
    columns = kv_buffer.shape[-1]
    call.needs(q.shape[-1] == columns, f"q must have {columns} columns", q.shape[-1])
    scaled = q.dtype in _FP8
    call.needs(
        not scaled or (q_scale is not None and kv_scale is not None),
        "FP8 queries need q_scale and kv_scale",
        None,
    )
    launch(
        kernel,
        q=q,
        kv_buffer=kv_buffer,
        o=o,
        qo_indptr=qo_indptr,
        kv_indptr=kv_indptr,
        kv_indices=kv_indices,
        kv_last_page_lens=kv_last_page_lens,
        max_seqlen_q=max_seqlen_q,
        page_size=page_size,
        scale=columns**-0.5 if sm_scale is None else sm_scale,
        q_scale=q_scale if scaled else None,
        kv_scale=kv_scale if kv_buffer.dtype in _FP8 else None,
        lse=lse,
    )


def _run_latent(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    kv_buffer: torch.Tensor,
    o: torch.Tensor,
    qo_indptr: torch.Tensor,
    kv_indptr: torch.Tensor,
    kv_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor,
    max_seqlen_q: int,
    page_size: int,
    scale: float,
    q_scale: torch.Tensor | None,
    kv_scale: torch.Tensor | None,
    lse: torch.Tensor | None,
) -> None:
    # asm_mla.cu takes the number of rows from these offsets.
    starts = memory.ints(qo_indptr)
    check_offsets(memory, "qo_indptr", starts, len(q))
    offsets = memory.entries("kv_indptr", kv_indptr, np.arange(len(starts)))
    check_offsets(memory, "kv_indptr", offsets, len(kv_indices))
    rows = []
    for (row, token, count), (_, page, pages) in zip(
        rows_between(starts), rows_between(offsets), strict=True
    ):
        if count > max_seqlen_q:
            memory.misused(
                "max_seqlen_q",
                "max_seqlen_q must be at least the tokens of every row",
                f"{max_seqlen_q} for row {row} with {count} tokens",
            )
        length = _csr_length(memory, kv_last_page_lens, row, pages, page_size)
        keys = _csr_keys(memory, "kv_indices", kv_indices, page, length, page_size)
        rows.append(Row(token, count, keys, below_diagonal(count, length, (-1, 0))))
    stored = _scalar(kv_scale)
    values = kv_buffer[..., : o.shape[-1]]
    cache = Cache(kv_buffer, values, stored, stored, ("kv_buffer", "kv_buffer"))
    softmax = Softmax(scale * _scalar(q_scale), empty="undefined")
    by_head = None if lse is None else lse.transpose(0, 1)
    attend(memory, q, cache, rows, softmax, o, by_head)


_DECODE_KERNEL = ModelKernel("mla_decode_fwd", _run_latent, _LATENT)
_PREFILL_KERNEL = ModelKernel("mla_prefill_fwd", _run_latent, _LATENT)


# ---- what they share


def _scalar(factor: torch.Tensor | None) -> float:
    """The one number that a kernel loads; 1 where it is given none."""
    return 1.0 if factor is None else float(factor.reshape(-1)[0])


def _csr_length(
    memory: KernelMemory, last_page_lens: torch.Tensor | None, row: int, pages: int, page_size: int
) -> int:
    """Keys of a row: full pages, and what its last one holds; None if a page holds one key."""
    if last_page_lens is None or not pages:
        return pages
    last = int(memory.entries("kv_last_page_lens", last_page_lens, np.array([row]))[0])
    if not 1 <= last <= page_size:
        rule = f"kv_last_page_lens must be between 1 and {page_size}"
        memory.misused("kv_last_page_lens", rule, f"{last} at row {row}")
    return max(0, (pages - 1) * page_size + last)


def _csr_keys(
    memory: KernelMemory, name: str, indices: torch.Tensor, first: int, length: int, page_size: int
) -> tuple[Ints, Ints]:
    """(page, place in it) of each of a row's keys, whose pages are listed from `first` on."""
    positions = np.arange(length)
    pages = memory.entries(name, indices, first + np.arange(-(-length // page_size)))
    return pages[positions // page_size], positions % page_size


def _table_keys(
    memory: KernelMemory, table: torch.Tensor, row: int, length: int, page_size: int
) -> tuple[Ints, Ints]:
    """(page, place in it) of each of a row's keys, whose pages stand in a row of a table."""
    positions = np.arange(length)
    used = np.arange(-(-length // page_size))
    pages = memory.entries("block_table", table, np.full_like(used, row), used)
    return pages[positions // page_size], positions % page_size
