"""AITER's prefill over listed pages, and over keys that lie one behind the other.

Source: ROCm/aiter, aiter/ops/mha.py (`mha_batch_prefill_func`, `flash_attn_varlen_func`), 2026,
with the semantics of FlashAttention that its kernels keep. Left out are ALiBi, biases, dropout, the
vectorised layout of pages and descaling: `KernelNotModelled`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.aiter.csr import ALSO, HALVES, csr_keys, csr_length
from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3, Tensor3Or4
from fuzzgraph.kernel_models.attention import (
    Cache,
    Row,
    Softmax,
    attend,
    below_diagonal,
    rows_between,
)
from fuzzgraph.kernel_models.checks import Call, check_longest, check_offsets
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["flash_attn_varlen_func_aiter", "mha_batch_prefill_func"]

_MHA = "ROCm/aiter, aiter/ops/mha.py, 2026"
_MHA_DEFAULTS = {"dropout_p": 0.0, "deterministic": False, "return_attn_probs": False,
                 "min_seqlen_q": 0}  # fmt: skip


def mha_batch_prefill_func(
    q: Tensor3,
    k: Tensor3Or4,
    v: Tensor3Or4,
    cu_seqlens_q: Tensor1,
    kv_indptr: Tensor1,
    kv_page_indices: Tensor1,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    logits_soft_cap: float = 0.0,
    causal: bool = False,
    window_size: tuple[int, ...] = (-1, -1),
    return_lse: bool = False,
    out: Tensor3 | None = None,
    sink_ptr: torch.Tensor | None = None,
    kv_last_page_lens: Tensor1 | None = None,
    **others: Any,
) -> Any:
    """Attention of new queries over pages that a CSR lists, aligned at the last token and key.

    Args:
        q: [T, Hq, D].
        k, v: [slots, Hkv, D or Dv], or [pages, page_size, Hkv, D or Dv] with `kv_last_page_lens`.
        cu_seqlens_q, kv_indptr: int32 [B + 1]; kv_page_indices: int32.
        sink_ptr: [Hq] a logit of each head that has no value.

    Returns:
        [T, Hq, Dv]; with `return_lse` also the float32 lse [Hq, T].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("mha_batch_prefill_func", _MHA)
    call.leaves_out(others, _MHA_DEFAULTS)
    call.needs(k.dim() == v.dim(), "k and v must have as many dimensions", f"{k.dim()}, {v.dim()}")
    rule = "k and v must have the same page size and heads"
    call.needs(k.shape[1:-1] == v.shape[1:-1], rule, f"{list(k.shape)} and {list(v.shape)}")
    _check_aiter_mha(call, q, k, v, cu_seqlens_q)
    _needs_two(call, window_size)
    call.needs(
        sink_ptr is None or (sink_ptr.dim() > 0 and len(sink_ptr) == q.shape[1]),
        f"sink_ptr must have {q.shape[1]} logits, one for each head",
        None if sink_ptr is None else list(sink_ptr.shape),
    )
    call.needs_dtype("kv_indptr", kv_indptr, torch.int32)
    call.needs_dtype("kv_page_indices", kv_page_indices, torch.int32)
    call.needs(
        (k.dim() == 4) == (kv_last_page_lens is not None),
        "kv_last_page_lens must be given with pages, and not with slots",
        f"k {list(k.shape)}",
    )
    flat = k.dim() == 3
    return _launch_aiter_mha(
        _AITER_BATCH_PREFILL, q, k[:, None] if flat else k, v[:, None] if flat else v,
        cu_seqlens_q, softmax_scale, logits_soft_cap, causal, window_size, return_lse, out,
        sinks=sink_ptr, max_seqlen_q=max_seqlen_q, kv_indptr=kv_indptr,
        kv_page_indices=kv_page_indices, kv_last_page_lens=kv_last_page_lens,
    )  # fmt: skip


def flash_attn_varlen_func_aiter(
    q: Tensor3,
    k: Tensor3,
    v: Tensor3,
    cu_seqlens_q: Tensor1,
    cu_seqlens_k: Tensor1,
    max_seqlen_q: int,
    max_seqlen_k: int,
    *,
    softmax_scale: float | None = None,
    logits_soft_cap: float = 0.0,
    causal: bool = False,
    window_size: tuple[int, ...] = (-1, -1),
    return_lse: bool = False,
    out: Tensor3 | None = None,
    **others: Any,
) -> Any:
    """AITER's `flash_attn_varlen_func`: keys of all rows lie one behind the other.

    Args:
        q: [T, Hq, D]; k, v: [keys, Hkv, D or Dv].
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1].

    Returns:
        [T, Hq, Dv]; with `return_lse` also the float32 lse [Hq, T].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("flash_attn_varlen_func", _MHA)
    call.leaves_out(others, _MHA_DEFAULTS)
    _check_aiter_mha(call, q, k, v, cu_seqlens_q)
    _needs_two(call, window_size)
    call.needs_dtype("cu_seqlens_k", cu_seqlens_k, torch.int32)
    return _launch_aiter_mha(
        _AITER_VARLEN, q, k, v, cu_seqlens_q, softmax_scale, logits_soft_cap, causal, window_size,
        return_lse, out, sinks=None, max_seqlen_q=max_seqlen_q, cu_seqlens_k=cu_seqlens_k,
    )  # fmt: skip


def _needs_two(call: Call, window_size: tuple[int, ...]) -> None:
    call.needs(len(window_size) >= 2, "window_size must have two numbers or more", window_size)


def _check_aiter_mha(
    call: Call, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, cu_seqlens_q: torch.Tensor
) -> None:
    call.needs_dtype("q", q, *HALVES, *ALSO)
    call.needs_dtype("k", k, q.dtype)
    call.needs_dtype("v", v, q.dtype)
    call.needs_dtype("cu_seqlens_q", cu_seqlens_q, torch.int32)
    for name, tensor in (("q", q), ("k", k), ("v", v)):
        call.needs_contiguous_last(name, tensor)
    heads = q.shape[1], k.shape[-2]
    rule = "query heads must be a multiple of those of the keys"
    call.needs(heads[1] > 0 and heads[0] % heads[1] == 0, rule, heads)
    call.needs(k.shape[-1] == q.shape[-1], "keys must be as wide as queries", k.shape[-1])


def _launch_aiter_mha(
    kernel: ModelKernel,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    softmax_scale: float | None,
    softcap: float,
    causal: bool,
    window_size: tuple[int, ...],
    return_lse: bool,
    out: torch.Tensor | None,
    **more: Any,
) -> Any:
    if out is None:
        out = torch.empty((*q.shape[:-1], v.shape[-1]), dtype=q.dtype, device=q.device)
    lse = None
    if return_lse:
        lse = torch.empty((q.shape[1], len(q)), dtype=torch.float32, device=q.device)
    launch(
        kernel,
        q=q,
        k=k,
        v=v,
        cu_seqlens_q=cu_seqlens_q,
        scale=q.shape[-1] ** -0.5 if softmax_scale is None else softmax_scale,
        softcap=softcap,
        # causal is a window that sees nothing to the right
        window=(window_size[0], 0) if causal else tuple(window_size[:2]),
        out=out,
        lse=lse,
        **more,
    )
    return out if lse is None else (out, lse)


def _run_aiter_batch_prefill(
    memory: KernelMemory,
    *,
    kv_indptr: torch.Tensor,
    kv_page_indices: torch.Tensor,
    kv_last_page_lens: torch.Tensor | None,
    **given: Any,
) -> None:
    page_size, count = given["k"].shape[1], len(given["cu_seqlens_q"])
    offsets = memory.entries("kv_indptr", kv_indptr, np.arange(count))
    check_offsets(memory, "kv_indptr", offsets, len(kv_page_indices))

    def keys_of(row: int) -> tuple[Ints, ...]:
        first = int(offsets[row])
        pages = max(0, int(offsets[row + 1]) - first)
        length = csr_length(memory, kv_last_page_lens, row, pages, page_size)
        return csr_keys(memory, "kv_page_indices", kv_page_indices, first, length, page_size)

    _attend_aiter_rows(memory, keys_of, **given)


def _run_aiter_varlen(memory: KernelMemory, *, cu_seqlens_k: torch.Tensor, **given: Any) -> None:
    starts = memory.entries("cu_seqlens_k", cu_seqlens_k, np.arange(len(given["cu_seqlens_q"])))
    check_offsets(memory, "cu_seqlens_k", starts, len(given["k"]))

    def keys_of(row: int) -> tuple[Ints, ...]:
        return (np.arange(int(starts[row]), max(int(starts[row]), int(starts[row + 1]))),)

    _attend_aiter_rows(memory, keys_of, **given)


def _attend_aiter_rows(
    memory: KernelMemory,
    keys_of: Callable[[int], tuple[Ints, ...]],
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    max_seqlen_q: int,
    scale: float,
    softcap: float,
    sinks: torch.Tensor | None,
    window: tuple[int, int],
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    starts = memory.ints(cu_seqlens_q)
    check_offsets(memory, "cu_seqlens_q", starts, len(q))
    rows = []
    for row, first, count in rows_between(starts):
        check_longest(memory, "max_seqlen_q", max_seqlen_q, row, count)
        keys = keys_of(row)
        hidden = below_diagonal(count, len(keys[0]), window)
        tokens = max(0, min(count, max_seqlen_q))  # a grid of no blocks serves none
        rows.append(Row(first, tokens, keys, hidden[:tokens]))
    attend(memory, q, Cache(k, v, names=("k", "v")), rows, Softmax(scale, softcap, sinks), out, lse)


_AITER_BATCH_PREFILL = ModelKernel("mha_batch_prefill_func", _run_aiter_batch_prefill, _MHA)
_AITER_VARLEN = ModelKernel("flash_attn_varlen_func", _run_aiter_varlen, _MHA)
