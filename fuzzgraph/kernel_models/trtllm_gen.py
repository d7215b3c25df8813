"""TensorRT-LLM's generated kernels for multi-head attention, as FlashInfer calls them.

Source: FlashInfer 0.6.18, flashinfer/decode.py, flashinfer/prefill.py and
csrc/trtllm_fmha_kernel_launcher.cu; what releases from 0.6.3 on call is the same. The kernels take
addresses and sizes: a page table, lengths and an output are read and written as if they were
contiguous, and values by the strides of the keys. Keys and values may lie in NVFP4, with scales in
planes of their own. Left out are outputs in FP4, block sparsity, separate page tables of keys and
values, and the sum of exponentials: `KernelNotModelled`. Results do not depend on the scratch
memory, whose size is not checked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3
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
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory
from fuzzgraph.kernel_models.nvfp4 import SCALED, fp4_rows, interleaved
from fuzzgraph.kernel_models.pages import paged_keys

__all__ = [
    "counter_bytes",
    "trtllm_batch_context_with_kv_cache",
    "trtllm_batch_decode_with_kv_cache",
]

_SOURCE = "FlashInfer 0.6.18, flashinfer/decode.py and csrc/trtllm_fmha_kernel_launcher.cu"
_DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn)
# Kernels for float32 do not exist. It is let through, because a case in float32 shows smaller
# differences; no rule of a caller depends on it.
_ALSO = (torch.float32,)
_LENGTHS = (torch.int32, torch.uint32)
_FP4_PAGES = 4
"""Pages of FP4 hold a multiple of so many tokens, whose scales of values lie side by side."""
SM_COUNT = 148
"""Multiprocessors of a B200, on which these kernels run."""

# What only chooses a schedule, which no result depends on.
_SCHEDULE = ("enable_pdl", "backend")
_DEFAULTS = {
    "kv_layout": "HND",
    "o_scale": 1.0,
    "uses_shared_paged_kv_idx": True,
    "return_lse": False,
    "enable_block_sparse_attention": False,
    # decode.py: a factor of 0 is standard attention
    "skip_softmax_threshold_scale_factor": 0.0,
}


def counter_bytes(batch_size: int, num_qo_heads: int, sm_count: int = SM_COUNT) -> int:
    """Bytes of the counters of a launch that splits long rows.

    Source: FlashInfer 0.6.18, utils.py, get_trtllm_gen_multi_ctas_kv_counter_bytes.
    """
    semaphores = -(-max(batch_size * num_qo_heads, sm_count) // 8) * 8
    return semaphores * 4


def trtllm_batch_decode_with_kv_cache(
    query: Tensor3,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    workspace_buffer: torch.Tensor,
    block_tables: Tensor2,
    seq_lens: Tensor1,
    max_seq_len: int,
    bmm1_scale: float | torch.Tensor = 1.0,
    bmm2_scale: float | torch.Tensor = 1.0,
    window_left: int = -1,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    sinks: torch.Tensor | None = None,
    q_len_per_req: int | None = 1,
    max_q_len: int | None = None,
    cum_seq_lens_q: Tensor1 | None = None,
    multi_ctas_kv_counter_buffer: torch.Tensor | None = None,
    kv_cache_sf: tuple[torch.Tensor, torch.Tensor] | None = None,
    **others: Any,
) -> torch.Tensor:
    """Attention of each row's last tokens over a paged cache; causal to the bottom right.

    Args:
        query: [T, Hq, D].
        kv_cache: keys and values, each [pages, Hkv, page_size, D]; in NVFP4 uint8 [..., D / 2].
        workspace_buffer: scratch memory; without a counter buffer its front is zero.
        block_tables: int32 [rows, width].
        seq_lens: int32 [rows] keys of each row, those of its query tokens included.
        max_seq_len: where a window is at least as long, the kernel takes it for none.
        bmm1_scale: factor of q k^T; a tensor is read when the launch runs.
        bmm2_scale: factor of the values.
        window_left: keys before its own that a token sees; -1 is no limit.
        q_len_per_req: query tokens of each row; None if `cum_seq_lens_q` says where they begin.
        multi_ctas_kv_counter_buffer: zero between launches.
        kv_cache_sf: scales of keys and of values in NVFP4, each float8_e4m3fn [pages, Hkv,
            page_size, D / 16] without gaps in the last two dimensions; those of values interleaved.

    Returns:
        [T, Hq, D].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("trtllm_batch_decode_with_kv_cache", _SOURCE)
    _refuse_left_out(call, others)
    given = (max_q_len is not None) and cum_seq_lens_q is not None
    rule = "q_len_per_req, or max_q_len with cum_seq_lens_q, must be given"
    call.needs(q_len_per_req is not None or given, rule, "neither")
    if q_len_per_req is None:
        assert cum_seq_lens_q is not None and max_q_len is not None
        offsets: torch.Tensor | int = cum_seq_lens_q
        rows, width = len(cum_seq_lens_q) - 1, max_q_len
    else:
        call.needs(q_len_per_req > 0, "q_len_per_req must be positive", q_len_per_req)
        offsets, rows, width = q_len_per_req, len(query) // q_len_per_req, q_len_per_req
    needed = counter_bytes(rows, query.shape[1], 1)
    counters = multi_ctas_kv_counter_buffer
    if counters is None:
        # Before FlashInfer had a buffer of their own, the counters lay in front of the scratch.
        counters = workspace_buffer.view(torch.uint8)
    size = counters.numel() * counters.element_size()
    call.needs(counters.is_contiguous(), "multi_ctas_kv_counter_buffer must be contiguous", "not")
    rule = f"multi_ctas_kv_counter_buffer must hold {needed} bytes"
    call.needs(size >= needed, rule, size)
    return _call_trtllm_gen(
        call, _DECODE, query=query, kv_cache=kv_cache, sf=kv_cache_sf, block_tables=block_tables,
        seq_lens=seq_lens, out=out, out_dtype=out_dtype, sinks=sinks, offsets=offsets, rows=rows,
        max_q_len=width, bmm1_scale=bmm1_scale, bmm2_scale=bmm2_scale,
        window=_masked_window(window_left, max_seq_len),
        counters=counters.view(torch.uint8).flatten()[:needed], cum_seq_lens_kv=None,
    )  # fmt: skip


def trtllm_batch_context_with_kv_cache(
    query: Tensor3,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    workspace_buffer: torch.Tensor,
    block_tables: Tensor2,
    seq_lens: Tensor1,
    max_q_len: int,
    max_kv_len: int,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    batch_size: int,
    cum_seq_lens_q: Tensor1,
    cum_seq_lens_kv: Tensor1,
    window_left: int = -1,
    out: torch.Tensor | None = None,
    out_dtype: torch.dtype | None = None,
    sinks: torch.Tensor | None = None,
    causal: bool = True,
    kv_cache_sf: tuple[torch.Tensor, torch.Tensor] | None = None,
    **others: Any,
) -> torch.Tensor:
    """The same for rows of any number of query tokens; takes and gives what decoding does.

    Args:
        cum_seq_lens_q, cum_seq_lens_kv: int32 [batch_size + 1] prefix sums of the rows' query
            tokens and keys; the latter must agree with `seq_lens`.
        causal: otherwise a token sees all keys of its row.
    """
    call = Call("trtllm_batch_context_with_kv_cache", _SOURCE)
    _refuse_left_out(call, others)
    rule = "window_left must be -1 if causal is False"
    call.needs(causal or window_left == -1, rule, window_left)
    call.needs_dtype("cum_seq_lens_kv", cum_seq_lens_kv, *_LENGTHS)
    window = _masked_window(window_left, max_kv_len) if causal else (-1, -1)
    return _call_trtllm_gen(
        call, _CONTEXT, query=query, kv_cache=kv_cache, sf=kv_cache_sf, block_tables=block_tables,
        seq_lens=seq_lens, out=out, out_dtype=out_dtype, sinks=sinks, offsets=cum_seq_lens_q,
        rows=batch_size, max_q_len=max_q_len, bmm1_scale=bmm1_scale,
        bmm2_scale=bmm2_scale, window=window, counters=None, cum_seq_lens_kv=cum_seq_lens_kv,
    )  # fmt: skip


def _masked_window(left: int, max_kv_len: int) -> tuple[int, int]:
    """Keys before and behind its own that a token sees.

    Source: FlashInfer 0.6.18, fmhaKernels.cuh: a window is masked only if the announced maximum
    exceeds it; rows longer than that maximum then see all their keys.
    """
    return (left if left < 0 or max_kv_len > left + 1 else -1), 0


def _refuse_left_out(call: Call, others: dict[str, Any]) -> None:
    call.leaves_out({k: v for k, v in others.items() if k not in _SCHEDULE}, _DEFAULTS)


def _call_trtllm_gen(
    call: Call,
    kernel: ModelKernel,
    *,
    query: torch.Tensor,
    kv_cache: tuple[torch.Tensor, torch.Tensor],
    sf: tuple[torch.Tensor, torch.Tensor] | None,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor | None,
    out_dtype: torch.dtype | None,
    sinks: torch.Tensor | None,
    offsets: torch.Tensor | int,
    rows: int,
    **more: Any,
) -> torch.Tensor:
    """What both forms check, and the launch."""
    rule = "kv_cache must be keys and values"
    call.needs(len(kv_cache) == 2, rule, f"{len(kv_cache)} of them")
    k_cache, v_cache = kv_cache
    for name, tensor in (("k_cache", k_cache), ("v_cache", v_cache)):
        call.needs_shape(name, tensor, None, None, None, None)
    call.needs_dtype("query", query, *_DTYPES, *_ALSO)
    fp4 = torch.uint8 in (k_cache.dtype, v_cache.dtype)
    if not fp4:
        call.leaves_out({"kv_cache_sf": sf}, {})
    call.needs_dtype("k_cache", k_cache, *_DTYPES, *_ALSO, torch.uint8)
    call.needs_dtype("v_cache", v_cache, k_cache.dtype)
    for name, tensor in (("query", query), ("k_cache", k_cache), ("v_cache", v_cache)):
        call.needs_contiguous_last(name, tensor)
    # The kernels read int32, whatever they are given; the documentation says int32 and uint32.
    call.needs_dtype("block_tables", block_tables, torch.int32)
    call.needs_dtype("seq_lens", seq_lens, *_LENGTHS)
    call.needs(block_tables.ndim == 2, "block_tables must be 2D", f"{block_tables.ndim}D")
    if isinstance(offsets, torch.Tensor):
        call.needs_dtype("cum_seq_lens_q", offsets, torch.int32)
    shapes = list(k_cache.shape), list(v_cache.shape)
    call.needs(shapes[0] == shapes[1], "k_cache and v_cache must have one shape", shapes)
    scales = _fp4_scales(call, query, k_cache, sf) if fp4 else (None, None)
    dims = query.shape[-1], k_cache.shape[-1] * (2 if fp4 else 1)
    call.needs(dims[0] == dims[1], "head_dim of query and k_cache must be the same", dims)
    heads = query.shape[1], k_cache.shape[1]
    rule = "num_qo_heads must be a multiple of num_kv_heads"
    call.needs(heads[1] > 0 and heads[0] % heads[1] == 0, rule, heads)
    call.needs_dtype("sinks", sinks, torch.float32)
    for name in ("bmm1_scale", "bmm2_scale"):
        if isinstance(more[name], torch.Tensor):
            call.needs_dtype(name, more[name], torch.float32)
            call.needs(more[name].numel() > 0, f"{name} must hold a number", list(more[name].shape))
    dtype = out_dtype or (query.dtype if out is None else out.dtype)
    allowed = (query.dtype, torch.float16, torch.bfloat16)
    call.needs(dtype in allowed, "out_dtype must be of query, float16 or bfloat16", dtype)
    result = torch.empty_like(query, dtype=dtype) if out is None else out
    call.needs(result.shape == query.shape, f"out must be {list(query.shape)}", list(result.shape))
    call.needs_dtype("out", result, dtype)
    if fp4:
        rule = "kernels with KV in FP4 give float8_e4m3fn alone"
        call.needs(dtype == torch.float8_e4m3fn, rule, dtype)
    launch(
        kernel, query=query, k_cache=k_cache, v_cache=v_cache, block_tables=block_tables,
        seq_lens=seq_lens, out=result, sinks=sinks, offsets=offsets, rows=rows,
        k_scales=scales[0], v_scales=scales[1], **more,
    )  # fmt: skip
    return result


def _fp4_scales(
    call: Call,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    sf: tuple[torch.Tensor, torch.Tensor] | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of keys and values in FP4, as bytes.

    Source: FlashInfer 0.6.18, flashinfer/prefill.py, "Contiguity requirements (trtllm-gen
    backend)"; the dtypes beside FP4 are those of its tests, test_trtllm_gen_attention_decode.py.
    """
    call.needs(sf is not None, "kv_cache_sf must be provided for NVFP4 KV cache", sf)
    assert sf is not None
    pages, heads, page_size, half = k_cache.shape
    call.needs(page_size % _FP4_PAGES == 0, "page_size must be a multiple of 4", page_size)
    rule = "kernels with KV in FP4 take queries in float8_e4m3fn alone"
    call.needs(query.dtype == torch.float8_e4m3fn, rule, query.dtype)
    each = 2 * half // SCALED
    for name, scales in zip(("k_scales", "v_scales"), sf, strict=True):
        call.needs_dtype(name, scales, torch.float8_e4m3fn)
        call.needs_shape(name, scales, pages, heads, page_size, each)
        strides = list(scales.stride())
        call.needs(
            strides[-1] == 1 and strides[-2] == each,
            f"{name} must be contiguous in the last two dimensions",
            strides,
        )
    return sf[0].view(torch.uint8), sf[1].view(torch.uint8)


def _trtllm_gen_paged(
    memory: KernelMemory,
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    offsets: torch.Tensor | int,
    rows: int,
    max_q_len: int,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    window: tuple[int, int],
    counters: torch.Tensor | None,
    cum_seq_lens_kv: torch.Tensor | None,
    k_scales: torch.Tensor | None,
    v_scales: torch.Tensor | None,
) -> None:
    if counters is not None and counters.any():
        rule = "the counters must be zero when a launch begins"
        memory.misused("multi_ctas_kv_counter_buffer", rule, f"{counters.tolist()[:8]}")
    every = np.arange(rows)
    lens = memory.entries("seq_lens", as_contiguous(seq_lens), every)
    if isinstance(offsets, int):
        starts = np.arange(rows + 1, dtype=np.int64) * offsets
    else:
        starts = memory.entries("cum_seq_lens_q", as_contiguous(offsets), np.arange(rows + 1))
        check_offsets(memory, "cum_seq_lens_q", starts, len(query))
    _check_key_offsets(memory, lens, cum_seq_lens_kv)
    table, page_size = as_contiguous(block_tables), k_cache.shape[2]
    scales = None if k_scales is None or v_scales is None else (k_scales, v_scales)
    found = []
    for row, first, count in rows_between(starts):
        check_longest(memory, "max_q_len", max_q_len, row, count)
        length = max(0, int(lens[row]))
        keys = paged_keys(memory, "block_tables", table, row, length, page_size)
        served = min(count, max_q_len)
        hidden = None if window == (-1, -1) else below_diagonal(count, length, window)[:served]
        found.append(Row(first, served, keys, hidden))
    attend_paged(
        memory, query, k_cache, v_cache, found, out, bmm1_scale=bmm1_scale, bmm2_scale=bmm2_scale,
        sinks=sinks, scales=scales,
    )  # fmt: skip


def attend_paged(
    memory: KernelMemory,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    rows: list[Row],
    out: torch.Tensor,
    *,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    sinks: torch.Tensor | None,
    scales: tuple[torch.Tensor, torch.Tensor] | None = None,
    side_by_side: bool = True,
) -> None:
    """Attention of these rows as FlashInfer's launchers of such kernels hand caches over: by one
    set of strides, those of the keys. Scales are read now.

    Args:
        scales: of keys and of values in FP4, each [pages, Hkv, page_size, D / 16].
        side_by_side: whether those of four values are, in the last two dimensions.
    """
    values = v_cache.as_strided(v_cache.shape, k_cache.stride())
    keys, values, of_all = k_cache.transpose(1, 2), values.transpose(1, 2), loaded(bmm2_scale)
    read = None if scales is None else _fp4_reader(keys, values, scales, side_by_side, of_all)
    cache = Cache(keys, values, value_scale=of_all, read=read)
    # What a kernel gives a token without keys is not documented.
    sinks = first_logits(memory, sinks, query.shape[1])
    softmax = Softmax(loaded(bmm1_scale), sinks=sinks, empty="undefined")
    attend(memory, query, cache, rows, softmax, as_contiguous(out))


def loaded(scale: float | torch.Tensor) -> float:
    """A factor, or the number at a tensor's address, of which a kernel loads no more."""
    return float(scale.reshape(-1)[0] if isinstance(scale, torch.Tensor) else scale)


def first_logits(
    memory: KernelMemory, sinks: torch.Tensor | None, heads: int
) -> torch.Tensor | None:
    """As many logits of sinks as there are heads, from a tensor's address on."""
    if sinks is None or sinks.shape == (heads,):
        return sinks
    return memory.rows("sinks", sinks.reshape(-1), np.arange(heads))


def _fp4_reader(
    keys: torch.Tensor,
    values: torch.Tensor,
    scales: tuple[torch.Tensor, torch.Tensor],
    side_by_side: bool,
    value_scale: float,
) -> Callable[[KernelMemory, tuple[Ints, ...]], tuple[Floats, Floats]]:
    """Reads keys and values, each [pages, page_size, Hkv, D / 2] in FP4, by page and place."""

    def read(memory: KernelMemory, index: tuple[Ints, ...]) -> tuple[Floats, Floats]:
        of_keys, of_values, at = scales[0].transpose(1, 2), scales[1].transpose(1, 2), index
        if side_by_side:
            page, place = index
            of_values, at = interleaved(scales[1]), (page, place // _FP4_PAGES, place % _FP4_PAGES)
        return (
            fp4_rows(memory, "k_cache", keys, of_keys, index, index, 1.0),
            fp4_rows(memory, "v_cache", values, of_values, index, at, value_scale),
        )

    return read


_DECODE = ModelKernel("trtllm_batch_decode_with_kv_cache", _trtllm_gen_paged, _SOURCE)
_CONTEXT = ModelKernel("trtllm_batch_context_with_kv_cache", _trtllm_gen_paged, _SOURCE)


def _check_key_offsets(
    memory: KernelMemory, lens: Ints, cum_seq_lens_kv: torch.Tensor | None
) -> None:
    """Record prefix sums that are not those of the lengths beside them."""
    if cum_seq_lens_kv is not None:
        sums = memory.ints(cum_seq_lens_kv)
        wanted = np.concatenate(([0], np.cumsum(lens)))
        if not np.array_equal(sums[: len(wanted)], wanted):
            rule = "cum_seq_lens_kv must be the prefix sums of seq_lens"
            memory.misused("cum_seq_lens_kv", rule, f"{sums.tolist()} of {lens.tolist()}")


def as_contiguous(tensor: torch.Tensor) -> torch.Tensor:
    """The memory that a kernel takes for a tensor if it gets an address and sizes only."""
    if tensor.is_contiguous():
        return tensor
    strides, step = [], 1
    for size in reversed(tensor.shape):
        strides.append(step)
        step *= size
    return tensor.as_strided(tensor.shape, tuple(reversed(strides)))
