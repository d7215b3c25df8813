"""TensorRT-LLM's XQA, which FlashInfer's decode with TensorRT-LLM's kernels is on SM90 and SM120.

Source: FlashInfer 0.6.18, flashinfer/decode.py and flashinfer/xqa.py; what releases from 0.6.3 on
say is the same. A verify needs a mask of its drafts, one bit for each pair of them; the keys before
the drafts are seen by all. The kernel takes a table's rows for as wide as its shape says, whatever
its strides, and values by the strides of the keys. Keys and values may lie in NVFP4, the scales of
both by the strides of those of the keys. Left out are draft lengths of their own for each row. The
size of the scratch memory is not checked.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3
from fuzzgraph.kernel_models.attention import (
    Bools,
    Row,
    below_diagonal,
)
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory
from fuzzgraph.kernel_models.nvfp4 import SCALED
from fuzzgraph.kernel_models.pages import paged_keys
from fuzzgraph.kernel_models.trtllm_gen import as_contiguous, attend_paged

__all__ = ["trtllm_batch_decode_with_kv_cache"]

_SOURCE = "FlashInfer 0.6.18, flashinfer/decode.py and flashinfer/xqa.py"
# float32 is let through, as in the other models; no kernel has it.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_PAGES = (16, 32, 64, 128)
_SEMAPHORES = 8 << 20
"""Bytes in front of the workspace that count the parts of long rows."""
_WORD = 16
"""Drafts that a word of the mask has bits for; rows of it are whole pairs of words."""
_IGNORED = ("enable_pdl", "backend", "multi_ctas_kv_counter_buffer", "max_seq_len",
            "skip_softmax_threshold_scale_factor")  # fmt: skip
"""What XQA is not given, or what chooses a schedule."""
_DEFAULTS = {
    "kv_layout": "HND",
    "o_scale": 1.0,
    "uses_shared_paged_kv_idx": True,
    "return_lse": False,
    "enable_block_sparse_attention": False,
}


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
    q_len_per_req: int = 1,
    mask: Tensor3 | None = None,
    kv_cache_sf: tuple[torch.Tensor, torch.Tensor] | None = None,
    **others: Any,
) -> torch.Tensor:
    """Attention of each row's last tokens over a paged cache, drafts as their mask says.

    Args:
        query: [T, Hq, D], `q_len_per_req` of them for each row.
        kv_cache: keys and values, each [pages, Hkv, page_size, D]; in NVFP4 uint8 [..., D / 2].
        workspace_buffer: begins with counters that are zero between launches.
        block_tables: int32 [rows, width].
        seq_lens: [rows] keys of each row, those of its query tokens included.
        max_seq_len: not handed on; the longest row is as wide as the table.
        bmm1_scale: factor of q k^T; a tensor is read when the launch runs.
        bmm2_scale: factor of the values.
        window_left: keys before its own that a token sees; -1 is no limit.
        mask: uint16 [rows, q_len_per_req, words]: bit j of a token's words says whether it sees
            token j of its row; needed where a row has several tokens, and not read elsewhere.
        kv_cache_sf: scales of keys and of values in NVFP4, each float8_e4m3fn [pages, Hkv,
            page_size, D / 16].

    Returns:
        [T, Hq, D].

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("trtllm_batch_decode_with_kv_cache, as XQA", _SOURCE)
    for name in ("max_q_len", "cum_seq_lens_q"):
        call.needs(others.get(name) is None, f"{name} must not be given", others.get(name))
    call.leaves_out({k: v for k, v in others.items() if k not in _IGNORED}, _DEFAULTS)
    k_cache, v_cache = kv_cache
    call.needs_dtype("query", query, *_DTYPES)
    call.needs_dtype("k_cache", k_cache, query.dtype, torch.float8_e4m3fn, torch.uint8)
    call.needs_dtype("v_cache", v_cache, k_cache.dtype)
    call.needs_dtype("block_tables", block_tables, torch.int32)
    call.needs_dtype("seq_lens", seq_lens, torch.int32, torch.uint32)
    call.needs_dtype("sinks", sinks, torch.float32)
    call.needs(k_cache.shape[2] in _PAGES, f"page_size must be one of {_PAGES}", k_cache.shape[2])
    dtype = out_dtype or (query.dtype if out is None else out.dtype)
    call.needs(dtype == query.dtype, "output and query must have the same dtype", dtype)
    drafts = q_len_per_req > 1
    call.needs(mask is not None or not drafts, "mask is required for speculative decoding", mask)
    if not drafts:
        mask = None
    call.needs_dtype("mask", mask, torch.uint16)
    rows = len(query) // q_len_per_req
    words = -(-q_len_per_req // (2 * _WORD)) * 2
    call.needs_shape("mask", mask, rows, q_len_per_req, words)
    result = torch.empty_like(query) if out is None else out
    call.needs(result.shape == query.shape, f"out must be {list(query.shape)}", list(result.shape))
    fp4 = k_cache.dtype == torch.uint8
    if not fp4:
        call.leaves_out({"kv_cache_sf": kv_cache_sf}, {})
    scales = _fp4_scales(call, k_cache, kv_cache_sf) if fp4 else (None, None)
    counters = workspace_buffer.view(torch.uint8).flatten()[:_SEMAPHORES]
    launch(
        _XQA, query=query, k_cache=k_cache, v_cache=v_cache, block_tables=block_tables,
        seq_lens=seq_lens, out=result, sinks=sinks, mask=mask, rows=rows, tokens=q_len_per_req,
        bmm1_scale=bmm1_scale, bmm2_scale=bmm2_scale, window_left=window_left,
        counters=counters[: rows * k_cache.shape[1] * 4], k_scales=scales[0], v_scales=scales[1],
    )  # fmt: skip
    return result


def _fp4_scales(
    call: Call, k_cache: torch.Tensor, sf: tuple[torch.Tensor, torch.Tensor] | None
) -> tuple[torch.Tensor, torch.Tensor]:
    """The scales of keys and values in FP4, as bytes."""
    call.needs(sf is not None, "kv_cache_sf must be provided for NVFP4 KV cache", sf)
    assert sf is not None
    *outer, half = k_cache.shape
    for name, scales in zip(("k_scales", "v_scales"), sf, strict=True):
        call.needs_dtype(name, scales, torch.float8_e4m3fn)
        call.needs_shape(name, scales, *outer, 2 * half // SCALED)
        call.needs_contiguous_last(name, scales)
    return sf[0].view(torch.uint8), sf[1].view(torch.uint8)


def _xqa(
    memory: KernelMemory,
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor,
    sinks: torch.Tensor | None,
    mask: torch.Tensor | None,
    rows: int,
    tokens: int,
    bmm1_scale: float | torch.Tensor,
    bmm2_scale: float | torch.Tensor,
    window_left: int,
    counters: torch.Tensor,
    k_scales: torch.Tensor | None,
    v_scales: torch.Tensor | None,
) -> None:
    if counters.any():
        rule = "the semaphores must be zero when a launch begins"
        memory.misused("workspace_buffer", rule, f"{counters.tolist()[:8]}")
    lens = memory.entries("seq_lens", as_contiguous(seq_lens), np.arange(rows))
    table, page_size = as_contiguous(block_tables), k_cache.shape[2]
    found = []
    for row in range(rows):
        length = max(0, int(lens[row]))
        keys = paged_keys(memory, "block_tables", table, row, length, page_size)
        # The window is that of each draft, for which drafts must be a chain (xqa.py).
        hidden = below_diagonal(tokens, length, (window_left, -1))
        if mask is not None:
            seen = _seen(memory, as_contiguous(mask), row, tokens)
            behind = min(tokens, length)
            hidden[:, length - behind :] |= ~seen[:, tokens - behind :]
        found.append(Row(row * tokens, tokens, keys, hidden))
    scales = None
    if k_scales is not None and v_scales is not None:
        scales = k_scales, v_scales.as_strided(v_scales.shape, k_scales.stride())
    attend_paged(
        memory, query, k_cache, v_cache, found, out, bmm1_scale=bmm1_scale, bmm2_scale=bmm2_scale,
        sinks=sinks, scales=scales, side_by_side=False,
    )  # fmt: skip


def _seen(memory: KernelMemory, mask: torch.Tensor, row: int, tokens: int) -> Bools:
    """[tokens, tokens] whether a token of a row sees another one."""
    token, other = np.divmod(np.arange(tokens * tokens), tokens)
    word = memory.entries("mask", mask, np.full_like(token, row), token, other // _WORD)
    bits: Ints = word >> (other % _WORD) & 1
    return bits.astype(bool).reshape(tokens, tokens)


_XQA = ModelKernel("xqa", _xqa, _SOURCE)
