"""FlashAttention with a paged cache, as versions 3 and 4 of its interface define it.

Source: flash-attention, hopper/flash_attn_interface.py and hopper/flash_api.cpp, 3.0.0b. Left out
are appending to the cache, rotary embedding, `qv`, descaling and score modifiers:
`KernelNotModelled`.
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

__all__ = ["flash_attn_with_kvcache"]

_SOURCE = "flash-attention 3.0.0b, hopper/flash_attn_interface.py and flash_api.cpp"
_DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
# The arithmetic of this interface in float32 does not exist. It is let through, because a case in
# float32 shows smaller differences; no rule of a caller depends on it.
_ALSO = (torch.float32,)

# What only chooses a schedule, which no result depends on.
_SCHEDULE = ("num_splits", "pack_gqa", "sm_margin", "scheduler_metadata", "ver", "max_seqlen_k",
             "cu_seqlens_k_new")  # fmt: skip
_DEFAULTS = {"rotary_interleaved": True, "only_qv": False, "attention_chunk": 0}


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None = None,
    max_seqlen_q: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    return_softmax_lse: bool = False,
    out: torch.Tensor | None = None,
    **others: Any,
) -> Any:
    """Attention of new queries over a paged cache; causal to the bottom right.

    Args:
        q: [T, Hq, D] with `cu_seqlens_q`, else [B, L, Hq, D].
        k_cache, v_cache: [pages, page_size, Hkv, D or Dv].
        cache_seqlens: int32 [B] keys of each row.
        page_table: int32 [B, width].
        cu_seqlens_q: int32 [B + 1] first query token of each row.
        max_seqlen_q: query tokens of a row that the launch serves; further ones are not computed.

    Returns:
        [T, Hq, Dv] like `q`; with `return_softmax_lse` also the float32 lse [Hq, T].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("flash_attn_with_kvcache", _SOURCE)
    followed = {name: value for name, value in others.items() if name not in _SCHEDULE}
    call.leaves_out(followed, _DEFAULTS)
    for name, tensor in (
        ("cache_seqlens", cache_seqlens),
        ("page_table", page_table),
        ("cu_seqlens_q", cu_seqlens_q),
    ):
        call.needs_dtype(name, tensor, torch.int32)
    call.needs_dtype("q", q, *_DTYPES, *_ALSO)
    call.needs_dtype("k_cache", k_cache, q.dtype)
    call.needs_dtype("v_cache", v_cache, q.dtype)
    for name, tensor in (
        ("q", q),
        ("k_cache", k_cache),
        ("v_cache", v_cache),
        ("page_table", page_table),
    ):
        call.needs_contiguous_last(name, tensor)
    rows = len(page_table)
    call.needs(
        cu_seqlens_q is None or len(cu_seqlens_q) == rows + 1,
        f"cu_seqlens_q must hold {rows + 1} offsets, one more than page_table has rows",
        None if cu_seqlens_q is None else len(cu_seqlens_q),
    )
    call.needs(
        len(cache_seqlens) == rows,
        f"cache_seqlens must hold {rows} lengths, as many as page_table has rows",
        len(cache_seqlens),
    )
    call.needs(
        cu_seqlens_q is None or max_seqlen_q is not None,
        "max_seqlen_q must be given with cu_seqlens_q",
        max_seqlen_q,
    )
    batched = cu_seqlens_q is None
    flat = q.flatten(0, 1) if batched else q
    width = q.shape[1] if batched else max_seqlen_q
    result = out
    if result is None:
        result = torch.empty((*q.shape[:-1], v_cache.shape[-1]), dtype=q.dtype, device=q.device)
    lse = None
    if return_softmax_lse:
        lse = torch.empty((q.shape[-2], len(flat)), dtype=torch.float32, device=q.device)
    launch(
        _KERNEL,
        q=flat,
        k_cache=k_cache,
        v_cache=v_cache,
        cache_seqlens=cache_seqlens,
        page_table=page_table,
        cu_seqlens_q=cu_seqlens_q,
        max_seqlen_q=width,
        # hopper/flash_attn_interface.py: 1 / sqrt(D) where nothing is given
        softmax_scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        # flash_api.cpp: causal is a window that sees nothing to the right
        window=(window_size[0], 0) if causal else window_size,
        softcap=softcap,
        sinks=sinks,
        out=result.flatten(0, 1) if batched else result,
        lse=lse,
    )
    return (result, lse) if return_softmax_lse else result


def _flash_attn_with_kvcache(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    cache_seqlens: torch.Tensor,
    page_table: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    max_seqlen_q: int,
    softmax_scale: float,
    window: tuple[int, int],
    softcap: float,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    lens = memory.ints(cache_seqlens)
    if cu_seqlens_q is None:
        offsets = np.arange(len(lens) + 1, dtype=np.int64) * max_seqlen_q
    else:
        offsets = memory.ints(cu_seqlens_q)
        check_offsets(memory, "cu_seqlens_q", offsets, len(q))
    rows = []
    for row, first, count in rows_between(offsets):
        served = min(count, max_seqlen_q)
        if count > served:
            memory.misused(
                "max_seqlen_q",
                "max_seqlen_q must be at least the tokens of every row",
                f"{max_seqlen_q} for row {row} with {count} tokens",
            )
        length = int(lens[row])
        keys = _paged(memory, page_table, row, max(0, length), k_cache.shape[1])
        hidden = None if window == (-1, -1) else below_diagonal(count, max(0, length), window)
        rows.append(Row(first, served, keys, None if hidden is None else hidden[:served]))
    cache = Cache(k_cache, v_cache)
    attend(memory, q, cache, rows, Softmax(softmax_scale, softcap, sinks), out, lse)


_KERNEL = ModelKernel("flash_attn_with_kvcache", _flash_attn_with_kvcache, _SOURCE)


def _paged(
    memory: KernelMemory, table: torch.Tensor, row: int, length: int, page_size: int
) -> tuple[Ints, Ints]:
    """(page, place in it) of each of a row's keys."""
    positions = np.arange(length)
    used = np.arange(-(-length // page_size))
    pages = memory.entries("page_table", table, np.full_like(used, row), used)
    return pages[positions // page_size], positions % page_size
