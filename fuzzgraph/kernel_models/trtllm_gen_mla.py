"""TensorRT-LLM's generated kernels for latent attention, as FlashInfer calls them.

Source: FlashInfer 0.6.9, flashinfer/mla/_core.py, flashinfer/prefill.py and
csrc/trtllm_fmha_kernel_launcher.cu; what releases from 0.6.3 on call is the same. Like the kernels
of `trtllm_gen` they take addresses and sizes. Left out are sparse selections, ragged queries of a
decode, the sum of exponentials of a decode, context parallelism and FP8 scales of blocks:
`KernelNotModelled`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3, Tensor4
from fuzzgraph.kernel_models.attention import (
    Cache,
    Row,
    Softmax,
    attend,
    below_diagonal,
    rows_between,
)
from fuzzgraph.kernel_models.checks import Call, check_offsets
from fuzzgraph.kernel_models.latent import latent, needs_one_width
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.pages import paged_keys
from fuzzgraph.kernel_models.trtllm_gen import (
    as_contiguous,
    counter_bytes,
    first_logits,
    loaded,
)

__all__ = ["trtllm_batch_decode_with_kv_cache_mla", "trtllm_ragged_attention_deepseek"]

_SOURCE = "FlashInfer 0.6.9, flashinfer/mla/_core.py and csrc/trtllm_fmha_kernel_launcher.cu"
_RAGGED = "FlashInfer 0.6.9, flashinfer/prefill.py"
# Kernels for float32 do not exist; it is let through, as in `trtllm_gen`.
_DTYPES = (torch.bfloat16, torch.float8_e4m3fn, torch.float32)
_PAGES = (32, 64)
_TABLE_TOKENS = 128
"""A page table ends at a multiple of so many tokens."""

_SCHEDULE = ("enable_pdl", "backend")
_DEFAULTS = {
    "sparse_mla_top_k": 0,
    "is_var_seq": True,
    "uses_shared_paged_kv_idx": True,
    "return_lse": False,
    "enable_dcp": False,
    "cp_world": 1,
    "cp_rank": 0,
    # _core.py: a factor of 0 is standard attention
    "skip_softmax_threshold_scale_factor": 0.0,
}


def trtllm_batch_decode_with_kv_cache_mla(
    query: Tensor4,
    kv_cache: torch.Tensor,
    workspace_buffer: torch.Tensor,
    qk_nope_head_dim: int,
    kv_lora_rank: int,
    qk_rope_head_dim: int,
    block_tables: Tensor2,
    seq_lens: Tensor1,
    max_seq_len: int,
    out: torch.Tensor | None = None,
    bmm1_scale: float | torch.Tensor = 1.0,
    bmm2_scale: float | torch.Tensor = 1.0,
    sinks: torch.Tensor | None = None,
    multi_ctas_kv_counter_buffer: torch.Tensor | None = None,
    **others: Any,
) -> torch.Tensor:
    """Latent attention of each row's last tokens over its pages; causal to the bottom right.

    Args:
        query: [B, L, Hq, kv_lora_rank + qk_rope_head_dim].
        kv_cache: [pages, page_size, D] or [pages, 1, page_size, D], as wide as queries.
        workspace_buffer: scratch memory; without a counter buffer its front is zero.
        qk_nope_head_dim: unread.
        block_tables: int32 [B, width], a whole number of 128 tokens wide.
        seq_lens: int32 [B] keys of each row, those of its query tokens included.
        max_seq_len: at least the longest of them.
        bmm1_scale: factor of q k^T; a tensor is read when the launch runs.
        bmm2_scale: factor of the values.
        multi_ctas_kv_counter_buffer: zero between launches.

    Returns:
        [B, L, Hq, kv_lora_rank], bfloat16 (float32 for queries in float32).

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("trtllm_batch_decode_with_kv_cache_mla", _SOURCE)
    call.leaves_out({k: v for k, v in others.items() if k not in _SCHEDULE}, _DEFAULTS)
    cache = kv_cache.unsqueeze(1) if kv_cache.ndim == 3 else kv_cache
    call.needs(query.ndim == 4, "query must be 4D", f"{query.ndim}D")
    call.needs(cache.ndim == 4, "kv_cache must be 3D or 4D", f"{kv_cache.ndim}D")
    rows, tokens, heads, columns = query.shape
    call.needs_dtype("query", query, *_DTYPES)
    call.needs_dtype("kv_cache", kv_cache, query.dtype)
    # The launcher takes both for int32, whatever they are; the documentation says int32.
    call.needs_dtype("block_tables", block_tables, torch.int32)
    call.needs_dtype("seq_lens", seq_lens, torch.int32)
    for name, tensor in (("query", query), ("kv_cache", kv_cache)):
        call.needs_contiguous_last(name, tensor)
    wide = kv_lora_rank + qk_rope_head_dim
    rule = f"queries must have kv_lora_rank + qk_rope_head_dim = {wide} columns"
    call.needs(columns == wide, rule, columns)
    needs_one_width(call, columns, cache.shape[-1], kv_lora_rank)
    page_size = cache.shape[-2]
    call.needs(page_size in _PAGES, "block_size must be 32 or 64", page_size)
    call.needs(not 64 < heads < 128, "query heads must not lie between 64 and 128", heads)
    _check_mla_table(call, block_tables, seq_lens, rows, page_size)
    counters = _counters(call, multi_ctas_kv_counter_buffer, workspace_buffer, rows * heads)
    for name, scale in (("bmm1_scale", bmm1_scale), ("bmm2_scale", bmm2_scale)):
        if isinstance(scale, torch.Tensor):
            call.needs_dtype(name, scale, torch.float32)
            call.needs(scale.numel() > 0, f"{name} must hold a number", list(scale.shape))
    call.needs_dtype("sinks", sinks, torch.float32)
    dtype = torch.float32 if query.dtype == torch.float32 else torch.bfloat16
    shape = (rows, tokens, heads, kv_lora_rank)
    result = torch.empty(shape, dtype=dtype, device=query.device) if out is None else out
    call.needs_dtype("out", result, dtype)
    call.needs(result.shape == shape, f"out must be {list(shape)}", list(result.shape))
    launch(
        _DECODE, query=query.flatten(0, 1), kv_cache=cache, block_tables=block_tables,
        seq_lens=seq_lens, max_seq_len=max_seq_len, out=result.flatten(0, 1), rows=rows,
        bmm1_scale=bmm1_scale, bmm2_scale=bmm2_scale, sinks=sinks, counters=counters,
    )  # fmt: skip
    return result


def _check_mla_table(
    call: Call, block_tables: torch.Tensor, seq_lens: torch.Tensor, rows: int, page_size: int
) -> None:
    call.needs(block_tables.ndim == 2, "block_tables must be 2D", f"{block_tables.ndim}D")
    rule = f"block_tables must have {rows} rows, as many as query"
    call.needs(len(block_tables) == rows, rule, len(block_tables))
    call.needs(
        block_tables.shape[1] * page_size % _TABLE_TOKENS == 0,
        f"block_tables must be a multiple of {_TABLE_TOKENS // page_size} pages wide",
        block_tables.shape[1],
    )
    call.needs(seq_lens.shape == (rows,), f"seq_lens must be [{rows}]", list(seq_lens.shape))


def _counters(
    call: Call, given: torch.Tensor | None, workspace: torch.Tensor, semaphores: int
) -> torch.Tensor:
    """The bytes that must be zero: a buffer of their own, or the front of the scratch memory."""
    needed = counter_bytes(semaphores, 1, 1)
    held = workspace if given is None else given
    name = "workspace_buffer" if given is None else "multi_ctas_kv_counter_buffer"
    call.needs_contiguous(name, held)
    size = held.numel() * held.element_size()
    call.needs(size >= needed, f"{name} must hold {needed} bytes", size)
    return held.view(torch.uint8).flatten()[:needed]


def _trtllm_gen_latent(
    memory: KernelMemory,
    *,
    query: torch.Tensor,
    kv_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    max_seq_len: int,
    out: torch.Tensor,
    rows: int,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    sinks: torch.Tensor | None,
    counters: torch.Tensor,
) -> None:
    if counters.any():
        rule = "the counters must be zero when a launch begins"
        memory.misused("multi_ctas_kv_counter_buffer", rule, f"{counters.tolist()[:8]}")
    lens = memory.entries("seq_lens", as_contiguous(seq_lens), np.arange(rows))
    if lens.max(initial=0) > max_seq_len:
        rule = "max_seq_len must be at least the length of every row"
        memory.misused("max_seq_len", rule, f"{max_seq_len} for a row of {lens.max()}")
    table, page_size = as_contiguous(block_tables), kv_cache.shape[2]
    tokens = len(query) // rows
    found = []
    for row in range(rows):
        length = max(0, int(lens[row]))
        keys = paged_keys(memory, "block_tables", table, row, length, page_size)
        found.append(Row(row * tokens, tokens, keys, below_diagonal(tokens, length, (-1, 0))))
    plain = latent(kv_cache.transpose(1, 2), out.shape[-1], "kv_cache")
    cache = Cache(plain.keys, plain.values, 1.0, loaded(bmm2_scale), plain.names)
    # What a kernel gives a token without keys is not documented.
    sinks = first_logits(memory, sinks, query.shape[1])
    softmax = Softmax(loaded(bmm1_scale), sinks=sinks, empty="undefined")
    attend(memory, query, cache, found, softmax, out)


_DECODE = ModelKernel("trtllm_batch_decode_with_kv_cache_mla", _trtllm_gen_latent, _SOURCE)


def trtllm_ragged_attention_deepseek(
    query: Tensor3,
    key: Tensor3,
    value: Tensor3,
    workspace_buffer: torch.Tensor,
    seq_lens: Tensor1,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    o_sf_scale: float,
    batch_size: int,
    window_left: int,
    cum_seq_lens_q: Tensor1,
    cum_seq_lens_kv: Tensor1,
    enable_pdl: bool | None,
    is_causal: bool,
    return_lse: bool,
    attention_sinks: torch.Tensor | None = None,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    **others: Any,
) -> Any:
    """Attention of rows of queries over rows of keys that lie one behind the other.

    Args:
        query: [T, H, D]; key [S, H, D]; value [S, H, Dv].
        seq_lens: int32 [batch_size] keys of each row.
        max_q_len, max_kv_len: of the longest row.
        cum_seq_lens_q, cum_seq_lens_kv: int32 [batch_size + 1] prefix sums of the rows.
        is_causal: aligned at the last token and the last key; else a token sees all keys.

    Returns:
        [T, H, Dv]; with `return_lse` also the float32 natural lse [T, H].
    """
    call = Call("trtllm_ragged_attention_deepseek", _RAGGED)
    followed = {"window_left": window_left, "o_sf_scale": o_sf_scale, **others}
    defaults = {
        "window_left": -1, "o_sf_scale": 1.0, "backend": "trtllm-gen",
        "sage_attn_sfs": (None,) * 4, "num_elts_per_sage_attn_blk": (0,) * 4,
        "skip_softmax_threshold_scale_factor": 0.0,
    }  # fmt: skip
    call.leaves_out(
        {k: v for k, v in followed.items() if k not in ("q_seq_lens_cpu", "kv_seq_lens_cpu")},
        defaults,
    )
    call.needs_dtype("query", query, torch.float16, *_DTYPES)
    for name, tensor in (("key", key), ("value", value)):
        call.needs_dtype(name, tensor, query.dtype)
    for name, tensor in (("query", query), ("key", key), ("value", value)):
        call.needs(tensor.ndim == 3, f"{name} must be 3D", f"{tensor.ndim}D")
        call.needs_contiguous_last(name, tensor)
    dims = query.shape[-1], key.shape[-1]
    call.needs(dims[0] == dims[1], "query and key must be equally wide", dims)
    rule = "query heads must be a multiple of key heads"
    divides = key.shape[1] > 0 and query.shape[1] % key.shape[1] == 0
    call.needs(divides, rule, (query.shape[1], key.shape[1]))
    offsets = (("cum_seq_lens_q", cum_seq_lens_q), ("cum_seq_lens_kv", cum_seq_lens_kv))
    for name, tensor in offsets:
        call.needs_dtype(name, tensor, torch.int32)
        rule = f"{name} must hold {batch_size + 1} offsets"
        call.needs(tensor.shape == (batch_size + 1,), rule, list(tensor.shape))
    call.needs_dtype("sinks", attention_sinks, torch.float32)
    wide = torch.bfloat16 if query.element_size() == 1 else query.dtype
    shape = (*query.shape[:2], value.shape[-1])
    result = torch.empty(shape, dtype=wide, device=query.device) if out is None else out
    call.needs(result.shape == shape, f"out must be {list(shape)}", list(result.shape))
    if return_lse and lse is None:
        lse = torch.empty(query.shape[:2], dtype=torch.float32, device=query.device)
    launch(
        _CONTEXT, query=query, key=key, value=value, cum_seq_lens_q=cum_seq_lens_q,
        cum_seq_lens_kv=cum_seq_lens_kv, max_q_len=max_q_len, max_kv_len=max_kv_len,
        is_causal=is_causal, bmm1_scale=bmm1_scale, bmm2_scale=bmm2_scale,
        sinks=attention_sinks, out=result, lse=lse if return_lse else None,
    )  # fmt: skip
    return (result, lse) if return_lse else result


def _trtllm_gen_ragged(
    memory: KernelMemory,
    *,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    cum_seq_lens_q: torch.Tensor,
    cum_seq_lens_kv: torch.Tensor,
    max_q_len: int,
    max_kv_len: int,
    is_causal: bool,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    sinks: torch.Tensor | None,
    out: torch.Tensor,
    lse: torch.Tensor | None,
) -> None:
    firsts, keys = memory.ints(cum_seq_lens_q), memory.ints(cum_seq_lens_kv)
    check_offsets(memory, "cum_seq_lens_q", firsts, len(query))
    check_offsets(memory, "cum_seq_lens_kv", keys, len(key))
    rows = []
    for (row, first, tokens), (_, start, length) in zip(
        rows_between(firsts), rows_between(keys), strict=True
    ):
        sizes = (("max_q_len", max_q_len, tokens), ("max_kv_len", max_kv_len, length))
        for name, most, has in sizes:
            if has > most:
                rule = f"{name} must be at least the length of every row"
                memory.misused(name, rule, f"{most} for row {row} of {has}")
        hidden = below_diagonal(tokens, length, (-1, 0)) if is_causal else None
        places = start + np.arange(length)
        served = min(tokens, max_q_len)
        rows.append(Row(first, served, (places,), None if hidden is None else hidden[:served]))
    cache = Cache(key, value, 1.0, loaded(bmm2_scale), ("key", "value"))
    sinks = first_logits(memory, sinks, query.shape[1])
    softmax = Softmax(loaded(bmm1_scale), sinks=sinks, empty="undefined")
    attend(memory, query, cache, rows, softmax, out, None if lse is None else lse.transpose(0, 1))


_CONTEXT = ModelKernel("trtllm_ragged_attention_deepseek", _trtllm_gen_ragged, _RAGGED)
