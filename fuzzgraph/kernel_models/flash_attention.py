"""FlashAttention, as version 3 of its interface defines it and version 4 keeps it.

Source: flash-attention 3.0.0b, hopper/flash_attn_interface.py and hopper/flash_api.cpp, in the
build that sglang ships. Left out are appending to the cache, rotary embedding, chunked attention
and score modifiers: `KernelNotModelled`. The widths that exist as compiled kernels are not asked
for (multiples of 8, `qv` of 256 and more): cases are narrow, and no rule of a caller depends on it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3, Tensor3Or4, Tensor4
from fuzzgraph.kernel_models.attention import (
    Cache,
    Floats,
    Row,
    Softmax,
    attend,
    below_diagonal,
    rows_between,
)
from fuzzgraph.kernel_models.checks import Call, check_longest, check_offsets
from fuzzgraph.kernel_models.flash_attention_plan import plan_size, planned_rows
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory
from fuzzgraph.kernel_models.pages import paged_keys

__all__ = ["flash_attn_varlen_func", "flash_attn_with_kvcache"]

_SOURCE = "flash-attention 3.0.0b, hopper/flash_attn_interface.py and flash_api.cpp"
_DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
# The arithmetic of this interface in float32 does not exist. It is let through, because a case in
# float32 shows smaller differences; no rule of a caller depends on it.
_ALSO = (torch.float32,)

# What only chooses a schedule, which no result depends on; and offsets of keys to append, which
# nothing reads where none are given.
_SCHEDULE = ("num_splits", "pack_gqa", "sm_margin", "ver", "cu_seqlens_k_new")
_DEFAULTS = {"rotary_interleaved": True, "only_qv": False, "attention_chunk": 0}

Window = tuple[int, int]
Descales = tuple[torch.Tensor | None, torch.Tensor | None, torch.Tensor | None]


def flash_attn_with_kvcache(
    q: Tensor3Or4,
    k_cache: Tensor4,
    v_cache: Tensor4,
    *,
    cache_seqlens: torch.Tensor,
    page_table: Tensor2,
    cu_seqlens_q: Tensor1 | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    scheduler_metadata: torch.Tensor | None = None,
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
        max_seqlen_k: most keys of a row, if the caller's binding announces it.
        qv: like `q`, but Dv wide: queries of the values, whose products add to the logits.
        q_descale, k_descale, v_descale: float32 [B, Hkv]; only read with FP8 queries.
        scheduler_metadata: int32, what `get_scheduler_metadata` planned; followed.

    Returns:
        [T, Hq, Dv] like `q`; with `return_softmax_lse` also the float32 lse [Hq, T], or
        [B, Hq, L] without `cu_seqlens_q`.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("flash_attn_with_kvcache", _SOURCE)
    _check_left_out(call, others)
    rows = len(page_table)
    call.needs_dtype("page_table", page_table, torch.int32)
    call.needs_contiguous_last("page_table", page_table)
    _needs_fa_rows(call, "cache_seqlens", cache_seqlens, rows)
    dims = 4 if cu_seqlens_q is None else 3
    rule = f"q must have {dims} dimensions {'without' if dims == 4 else 'with'} cu_seqlens_q"
    call.needs(q.dim() == dims, rule, list(q.shape))
    if cu_seqlens_q is None:
        call.needs(len(q) == rows, f"q must hold {rows} rows, as many as page_table", len(q))
        width = q.shape[1]
    else:
        _needs_fa_offsets(call, "cu_seqlens_q", cu_seqlens_q, rows, max_seqlen_q, "max_seqlen_q")
        assert max_seqlen_q is not None
        width = max_seqlen_q
    if scheduler_metadata is not None:
        longest = page_table.shape[1] * k_cache.shape[1]
        _needs_window(call, window_size)
        size = plan_size(rows, width, longest, q.shape[-1], causal, window_size)
        call.needs_dtype("scheduler_metadata", scheduler_metadata, torch.int32)
        shape = list(scheduler_metadata.shape)
        call.needs(shape == [size], f"scheduler_metadata must have shape [{size}]", shape)
        call.needs(scheduler_metadata.is_contiguous(), "scheduler_metadata must be contiguous", "")
    return _flash_attn(
        call, _KVCACHE, q=q, keys=k_cache, values=v_cache, qv=qv,
        descales=(q_descale, k_descale, v_descale), softmax_scale=softmax_scale, causal=causal,
        window_size=window_size, softcap=softcap, sinks=sinks, with_lse=return_softmax_lse,
        out=out, rows=rows, batched=cu_seqlens_q is None, max_seqlen_q=width,
        lens=cache_seqlens, page_table=page_table, cu_seqlens_q=cu_seqlens_q,
        plan=scheduler_metadata, max_seqlen_k=max_seqlen_k,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: Tensor3,
    k: Tensor3,
    v: Tensor3,
    cu_seqlens_q: Tensor1,
    cu_seqlens_k: Tensor1,
    max_seqlen_q: int,
    max_seqlen_k: int,
    seqused_k: Tensor1 | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    qv: torch.Tensor | None = None,
    q_descale: torch.Tensor | None = None,
    k_descale: torch.Tensor | None = None,
    v_descale: torch.Tensor | None = None,
    window_size: Window = (-1, -1),
    softcap: float = 0.0,
    sinks: torch.Tensor | None = None,
    return_softmax_lse: bool = False,
    out: torch.Tensor | None = None,
    **others: Any,
) -> Any:
    """The same over keys and values that lie one row behind the other.

    Args:
        q: [T, Hq, D]; k, v: [K, Hkv, D or Dv].
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1] first query token and first key of each row.
        max_seqlen_k: keys of the longest row, by which windows are dropped.
        seqused_k: int32 [B] keys of each row that are used; all of them if None.
    """
    call = Call("flash_attn_varlen_func", _SOURCE)
    _check_left_out(call, others)
    rows = len(cu_seqlens_q) - 1
    _needs_fa_offsets(call, "cu_seqlens_q", cu_seqlens_q, rows, max_seqlen_q, "max_seqlen_q")
    _needs_fa_offsets(call, "cu_seqlens_k", cu_seqlens_k, rows, max_seqlen_k, "max_seqlen_k")
    if seqused_k is not None:
        _needs_fa_rows(call, "seqused_k", seqused_k, rows)
    return _flash_attn(
        call, _VARLEN, q=q, keys=k, values=v, qv=qv, descales=(q_descale, k_descale, v_descale),
        softmax_scale=softmax_scale, causal=causal, window_size=window_size, softcap=softcap,
        sinks=sinks, with_lse=return_softmax_lse, out=out, rows=rows, batched=False,
        max_seqlen_q=max_seqlen_q, lens=seqused_k, cu_seqlens_q=cu_seqlens_q,
        cu_seqlens_k=cu_seqlens_k,
    )  # fmt: skip


def _needs_window(call: Call, window: Window) -> None:
    """flash_attn_interface.py hands on the first two."""
    call.needs(len(window) >= 2, "window_size must have two numbers", window)


def _check_left_out(call: Call, others: dict[str, Any]) -> None:
    followed = {name: value for name, value in others.items() if name not in _SCHEDULE}
    call.leaves_out(followed, _DEFAULTS)


def _needs_fa_offsets(
    call: Call, name: str, offsets: torch.Tensor, rows: int, longest: int | None, needed: str
) -> None:
    call.needs_dtype(name, offsets, torch.int32)
    call.needs(len(offsets) == rows + 1, f"{name} must hold {rows + 1} offsets", len(offsets))
    call.needs(longest is not None, f"{needed} must be given with {name}", longest)


def _needs_fa_rows(call: Call, name: str, tensor: torch.Tensor, rows: int) -> None:
    call.needs_dtype(name, tensor, torch.int32)
    call.needs(list(tensor.shape) == [rows], f"{name} must have shape [{rows}]", tensor.shape)
    call.needs(tensor.is_contiguous(), f"{name} must be contiguous", tensor.stride())


def _flash_attn(
    call: Call,
    kernel: ModelKernel,
    *,
    q: torch.Tensor,
    keys: torch.Tensor,
    values: torch.Tensor,
    qv: torch.Tensor | None,
    descales: Descales,
    softmax_scale: float | None,
    causal: bool,
    window_size: Window,
    with_lse: bool,
    out: torch.Tensor | None,
    rows: int,
    batched: bool,
    **more: Any,
) -> Any:
    """What both forms check, and the launch."""
    _needs_window(call, window_size)
    call.needs_dtype("q", q, *_DTYPES, *_ALSO)
    for name, tensor in (("k", keys), ("v", values), ("qv", qv)):
        call.needs_dtype(name, tensor, q.dtype)
        call.needs_contiguous_last(name, tensor)
    call.needs_contiguous_last("q", q)
    heads = q.shape[-2], keys.shape[-2]
    rule = "number of heads in key/value must divide number of heads in query"
    call.needs(heads[1] > 0 and heads[0] % heads[1] == 0, rule, heads)
    call.needs(keys.shape[-1] == q.shape[-1], "k must be as wide as q", keys.shape[-1])
    if qv is not None:
        shape, got = [*q.shape[:-1], values.shape[-1]], list(qv.shape)
        call.needs(got == shape, f"qv must have shape {shape}", got)
    scaled = q.dtype == torch.float8_e4m3fn
    for name, tensor in zip(("q_descale", "k_descale", "v_descale"), descales, strict=True):
        if scaled and tensor is not None:
            shape, got = [rows, heads[1]], list(tensor.shape)
            call.needs_dtype(name, tensor, torch.float32)
            call.needs(got == shape, f"{name} must have shape {shape}", got)
    wanted, dtype = [*q.shape[:-1], values.shape[-1]], torch.bfloat16 if scaled else q.dtype
    result = torch.empty(wanted, dtype=dtype, device=q.device) if out is None else out
    call.needs(list(result.shape) == wanted, f"out must have shape {wanted}", list(result.shape))
    call.needs_dtype("out", result, dtype)
    call.needs_contiguous_last("out", result)
    flat, lse = q.flatten(0, 1) if batched else q, None
    if with_lse:
        lse = torch.empty((heads[0], len(flat)), dtype=torch.float32, device=q.device)
    # flash_attn_interface.py: the width of all queries under the root where no scale is given
    columns = q.shape[-1] + (0 if qv is None else qv.shape[-1])
    launch(
        kernel, q=flat, keys=keys, values=values,
        qv=qv.flatten(0, 1) if batched and qv is not None else qv,
        descales=descales if scaled else (None, None, None),
        softmax_scale=columns**-0.5 if softmax_scale is None else softmax_scale,
        # flash_api.cpp: causal is a window that sees nothing to the right
        window=(window_size[0], 0) if causal else tuple(window_size[:2]),
        out=result.flatten(0, 1) if batched else result, lse=lse, **more,
    )  # fmt: skip
    if lse is None:
        return result
    shown = lse.view(heads[0], len(q), -1).transpose(0, 1) if batched else lse
    return result, shown


def _flash_attn_with_kvcache(
    memory: KernelMemory,
    *,
    lens: torch.Tensor,
    page_table: torch.Tensor,
    max_seqlen_k: int | None,
    **given: Any,
) -> None:
    found, page_size = memory.ints(lens), given["keys"].shape[1]
    if max_seqlen_k is not None:
        for row, count in enumerate(found.tolist()):
            check_longest(memory, "max_seqlen_k", max_seqlen_k, row, count)

    def keys_of(row: int) -> tuple[Ints, ...]:
        return paged_keys(memory, "page_table", page_table, row, int(found[row]), page_size)

    _attend_rows(memory, keys_of, given)


def _flash_attn_varlen_func(
    memory: KernelMemory, *, lens: torch.Tensor | None, cu_seqlens_k: torch.Tensor, **given: Any
) -> None:
    starts = memory.ints(cu_seqlens_k)
    check_offsets(memory, "cu_seqlens_k", starts, len(given["keys"]))
    used = np.diff(starts) if lens is None else memory.ints(lens)

    def keys_of(row: int) -> tuple[Ints, ...]:
        return (int(starts[row]) + np.arange(max(0, int(used[row]))),)

    _attend_rows(memory, keys_of, given)


def _attend_rows(memory: KernelMemory, keys_of: Any, given: dict[str, Any]) -> None:
    """All rows, by the keys that `keys_of` finds for each."""
    q, cu_seqlens_q, most = given["q"], given["cu_seqlens_q"], given["max_seqlen_q"]
    window = given["window"]
    if cu_seqlens_q is None:
        offsets = np.arange(len(q) // max(most, 1) + 1, dtype=np.int64) * most
    else:
        offsets = memory.ints(cu_seqlens_q)
        check_offsets(memory, "cu_seqlens_q", offsets, len(q))
    scales = _descale_factors(memory, given["descales"], q.shape[1])
    served = planned_rows(memory, given.get("plan"), len(offsets) - 1)
    softmax = Softmax(given["softmax_scale"], given["softcap"], given["sinks"])
    rows = []
    for row, first, count in rows_between(offsets):
        check_longest(memory, "max_seqlen_q", most, row, count)
        if row not in served:
            continue
        keys = keys_of(row)
        hidden = None if window == (-1, -1) else below_diagonal(count, len(keys[0]), window)
        tokens = max(0, min(count, most))  # a grid of no blocks serves none
        seen = None if hidden is None else hidden[:tokens]
        rows.append(Row(first, tokens, keys, seen, *scales(row)))
    cache = Cache(given["keys"], given["values"])
    attend(memory, q, cache, rows, softmax, given["out"], given["lse"], given["qv"])


def _descale_factors(
    memory: KernelMemory, descales: Descales, heads: int
) -> Callable[[int], tuple[Floats | None, Floats | None]]:
    """Row -> ([Hq] factor of its logits, [Hq] factor of its values)."""
    names = ("q_descale", "k_descale", "v_descale")

    def of(row: int) -> tuple[Floats | None, Floats | None]:
        found: list[Floats | None] = []
        for name, tensor in zip(names, descales, strict=True):
            if tensor is None:
                found.append(None)
                continue
            factors = memory.numbers(name, tensor, np.array([row]))[0]
            found.append(np.repeat(factors, heads // len(factors)))
        given = [factor for factor in found[:2] if factor is not None]
        return (np.prod(given, axis=0) if given else None), found[2]

    return of


_KVCACHE = ModelKernel(
    "flash_attn_with_kvcache", _flash_attn_with_kvcache, _SOURCE, plans=("plan",)
)
_VARLEN = ModelKernel("flash_attn_varlen_func", _flash_attn_varlen_func, _SOURCE)
