"""CUTLASS's latent attention for one query token of each row, as sgl-kernel calls it.

Source: sgl-kernel 0.3.x, python/sgl_kernel/attention.py and csrc/attention/cutlass_mla_kernel.cu.
The kernel takes addresses and sizes: the page table, the lengths and the cache are read as if they
were contiguous, queries by their strides. Left out is FP8.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3
from fuzzgraph.kernel_models.attention import Row, Softmax, attend
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.latent import latent, needs_one_width
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.pages import paged_keys
from fuzzgraph.kernel_models.trtllm_gen import as_contiguous

__all__ = ["cutlass_mla_decode", "cutlass_mla_get_workspace_size"]

_SOURCE = "sgl-kernel 0.3.x, attention.py and cutlass_mla_kernel.cu"
# The arithmetic in float32 does not exist. It is let through, as in `flash_attention`.
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)
_MOST_HEADS = 128
_SPLIT_BYTES = 64
_TILE_KEYS = 128
"""Keys that a tile of the kernel holds: a row of the page table is a whole number of them."""


def cutlass_mla_get_workspace_size(
    max_seq_len: int, num_batches: int, sm_count: int = 0, num_kv_splits: int = 1
) -> int:
    """Bytes of scratch memory: each split of each row has its own.

    A real split needs float32 for 128 heads of 513 columns (CUTLASS, sm100_mla.hpp,
    get_workspace_size). Here it needs few bytes, because nothing is kept there; the factors that a
    caller can get wrong are the real ones.
    """
    return _SPLIT_BYTES * num_batches * num_kv_splits


def cutlass_mla_decode(
    q_nope: Tensor3,
    q_pe: Tensor3,
    kv_c_and_k_pe_cache: Tensor3,
    seq_lens: Tensor1,
    page_table: Tensor2,
    workspace: torch.Tensor,
    sm_scale: float,
    num_kv_splits: int = 1,
) -> torch.Tensor:
    """Latent attention of each row's token over its pages.

    Args:
        q_nope: [B, H, R], the part that has absorbed the projection of keys.
        q_pe: [B, H, P], the rotary part.
        kv_c_and_k_pe_cache: [pages, page_size, R + P]; the first R columns are values.
        seq_lens: int32 [B] keys of each row.
        page_table: int32 [B, width], a whole number of 128 tokens wide.
        workspace: bytes of scratch memory.
        num_kv_splits: no result depends on it.

    Returns:
        [B, H, R].

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("cutlass_mla_decode", _SOURCE)
    for name, tensor in (("q_nope", q_nope), ("q_pe", q_pe), ("cache", kv_c_and_k_pe_cache)):
        call.needs(tensor.ndim == 3, f"{name} must be 3D", f"{tensor.ndim}D")
    rows, heads, rank = q_nope.shape
    rule = f"q_pe must have {rows} rows and {heads} heads, as q_nope has"
    call.needs(q_pe.shape[:2] == (rows, heads), rule, list(q_pe.shape))
    call.needs(heads <= _MOST_HEADS, f"heads must be at most {_MOST_HEADS}", heads)
    needs_one_width(call, rank + q_pe.shape[-1], kv_c_and_k_pe_cache.shape[-1], rank)
    call.needs(page_table.ndim == 2, "page_table must be 2D", f"{page_table.ndim}D")
    rule = f"page_table must have {rows} rows, as many as q_nope"
    call.needs(len(page_table) == rows, rule, len(page_table))
    width, page_size = page_table.shape[1], kv_c_and_k_pe_cache.shape[1]
    rule = f"page_table must hold a positive multiple of {_TILE_KEYS} tokens"
    call.needs(width > 0 and width * page_size % _TILE_KEYS == 0, rule, width * page_size)
    call.needs_dtype("q_nope", q_nope, *_DTYPES)
    call.needs_dtype("q_pe", q_pe, q_nope.dtype)
    call.needs_dtype("kv_c_and_k_pe_cache", kv_c_and_k_pe_cache, q_nope.dtype)
    call.needs_dtype("seq_lens", seq_lens, torch.int32)
    call.needs_dtype("page_table", page_table, torch.int32)
    for name, tensor in (("q_nope", q_nope), ("q_pe", q_pe)):
        call.needs_contiguous_last(name, tensor)
    out = torch.empty((rows, heads, rank), dtype=q_nope.dtype, device=q_nope.device)
    launch(
        _KERNEL, q=torch.cat((q_nope, q_pe), -1), cache=kv_c_and_k_pe_cache, seq_lens=seq_lens,
        page_table=page_table, workspace_bytes=workspace.numel() * workspace.element_size(),
        num_kv_splits=num_kv_splits, sm_scale=sm_scale, out=out,
    )  # fmt: skip
    return out


def _cutlass_mla(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    cache: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    workspace_bytes: int,
    num_kv_splits: int,
    sm_scale: float,
    out: torch.Tensor,
) -> None:
    needed = cutlass_mla_get_workspace_size(
        page_table.shape[1] * cache.shape[1], len(q), num_kv_splits=num_kv_splits
    )
    if workspace_bytes < needed:  # the host code does not look
        rule = f"workspace must hold the {needed} bytes of cutlass_mla_get_workspace_size"
        memory.misused("workspace", rule, f"{workspace_bytes}")
    lens = memory.entries("seq_lens", as_contiguous(seq_lens), np.arange(len(q)))
    table, pages = as_contiguous(page_table), as_contiguous(cache)
    rows = []
    for row, length in enumerate(lens.tolist()):
        keys = paged_keys(memory, "page_table", table, row, length, pages.shape[1])
        rows.append(Row(row, 1, keys))
    # What the kernel gives a token without keys is not documented.
    softmax = Softmax(sm_scale, empty="undefined")
    name = "kv_c_and_k_pe_cache"
    attend(memory, q, latent(pages.unsqueeze(2), out.shape[-1], name), rows, softmax, out)


_KERNEL = ModelKernel("cutlass_mla_decode", _cutlass_mla, _SOURCE)
