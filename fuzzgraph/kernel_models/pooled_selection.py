"""Selection of blocks by pooled keys, as InfLLM-V2's kernels and sglang's do it for MiniCPM.

Source: sgl-kernel 0.4 (csrc/infllm_v2/flash_api.cpp, python/sgl_kernel/infllm_v2) for scores and
their pooling; sglang 0.5.19 to 0.5.23, csrc/minicpm_sala/get_block_table.cuh for the table. Scores
are weights that sixteen query heads give a key together, in units of a softmax over coarser keys.
Which numbers of columns the first is compiled for is left out, as are prompts (`causal`), windows,
caps and paged keys.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor3
from fuzzgraph.kernel_models.checks import Call, check_longest, check_offsets
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["infllmv2_attn_stage1", "max_pooling_1d_varlen", "selected_slots"]

_SCORES_SOURCE = "sgl-kernel 0.4, csrc/infllm_v2/flash_api.cpp mha_varlen_fwd_stage1"
_POOLING_SOURCE = "sgl-kernel 0.4, python/sgl_kernel/infllm_v2 max_pooling_1d_varlen"
_TABLE_SOURCE = "sglang 0.5.19 to 0.5.23, csrc/minicpm_sala/get_block_table.cuh"
_HEADS = 16
"""Query heads whose weights are added (`m_block_dim`)."""
_ROUNDED = 128
"""The columns of scores are a multiple of this."""
_DTYPES = (torch.float16, torch.bfloat16)
_DEFAULTS = {
    "dropout_p": 0.0,
    "causal": False,
    "window_size": (-1, -1),
    "softcap": 0.0,
    "deterministic": False,
    "return_attn_probs": True,
}


def infllmv2_attn_stage1(
    q: Tensor3,
    k: Tensor3,
    v: Tensor3,
    cu_seqlens_q: Tensor1,
    cu_seqlens_k: Tensor1,
    cu_seqlens_v: Tensor1,
    max_seqlen_q: int,
    max_seqlen_k: int,
    softmax_scale: float | None = None,
    **others: Any,
) -> torch.Tensor:
    """How much sixteen query heads together think of each key.

    Args:
        q: [T, heads, D]; k: [n, KV heads, D] keys; v: [m, KV heads, D] coarser ones, by which
            weights are normalised. float16 or bfloat16.
        cu_seqlens_q: int32 [B + 1] in query tokens times the heads of each KV head.
        cu_seqlens_k, cu_seqlens_v: int32 [B + 1] in keys.
        max_seqlen_q, max_seqlen_k: the longest row, in the same units.

    Returns:
        [KV heads, T, columns] like `q`, zeros behind a row's keys; columns are `max_seqlen_k`, up
        to a multiple of 128.

    Raises:
        KernelRefused: the real host code refuses such a call.
        KernelNotModelled: an argument that the model does not follow.
    """
    call = Call("infllmv2_attn_stage1", _SCORES_SOURCE)
    call.leaves_out(others, _DEFAULTS)
    tokens, heads, width = q.shape
    rows, groups = len(cu_seqlens_q) - 1, k.shape[1]
    call.needs_dtype("q", q, *_DTYPES)
    for name, keys in (("k", k), ("v", v)):
        call.needs_dtype(name, keys, q.dtype)
        call.needs_shape(name, keys, None, groups, width)
        call.needs_contiguous_last(name, keys)
    for name, offsets in (
        ("cu_seqlens_q", cu_seqlens_q),
        ("cu_seqlens_k", cu_seqlens_k),
        ("cu_seqlens_v", cu_seqlens_v),
    ):
        call.needs_dtype(name, offsets, torch.int32)
        call.needs_shape(name, offsets, rows + 1)
        call.needs_contiguous(name, offsets)
    call.needs(rows > 0, "batch size must be positive", rows)
    call.needs(width % 8 == 0, "head_size must be a multiple of 8", width)
    call.needs(heads == _HEADS * groups, f"a KV head must have {_HEADS} query heads", heads)
    columns = -(-max_seqlen_k // _ROUNDED) * _ROUNDED
    scores = torch.zeros(groups, tokens, columns, dtype=q.dtype, device=q.device)
    if max_seqlen_k > 0:
        launch(
            _SCORES, q=q, k=k, v=v, cu_seqlens_q=cu_seqlens_q, cu_seqlens_k=cu_seqlens_k,
            cu_seqlens_v=cu_seqlens_v, max_seqlen_q=max_seqlen_q, max_seqlen_k=max_seqlen_k,
            scale=width**-0.5 if softmax_scale is None else softmax_scale, scores=scores,
        )  # fmt: skip
    return scores


def _run_scores(
    memory: KernelMemory,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    cu_seqlens_v: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    scale: float,
    scores: torch.Tensor,
) -> None:
    starts, fine, coarse = map(memory.ints, (cu_seqlens_q, cu_seqlens_k, cu_seqlens_v))
    check_offsets(memory, "cu_seqlens_q", starts, _HEADS * len(q))
    check_offsets(memory, "cu_seqlens_k", fine)
    check_offsets(memory, "cu_seqlens_v", coarse)
    groups = k.shape[1]
    for row in range(len(starts) - 1):
        check_longest(memory, "max_seqlen_q", max_seqlen_q, row, int(starts[row + 1] - starts[row]))
        count = int(fine[row + 1] - fine[row])
        check_longest(memory, "max_seqlen_k", max_seqlen_k, row, count)
        count = min(count, scores.shape[2])
        if count <= 0:
            continue
        places = np.arange(fine[row], fine[row] + count)
        keys = memory.numbers("k", k, places)
        units = memory.numbers("v", v, np.arange(coarse[row], max(coarse[row], coarse[row + 1])))
        for token in range(starts[row] // _HEADS, starts[row + 1] // _HEADS):
            query = memory.numbers("q", q, np.array([token]))[0].reshape(groups, _HEADS, -1)
            logits = scale * np.einsum("hgd,nhd->hgn", query, keys)
            of_coarse = scale * np.einsum("hgd,nhd->hgn", query, units)
            found = np.exp(logits - _log_sum(of_coarse)).sum(1)
            head, column = np.divmod(np.arange(groups * count), count)
            memory.store("scores", scores, found.ravel(), head, np.full_like(head, token), column)


def _log_sum(logits: np.ndarray[Any, np.dtype[np.float64]]) -> Any:
    """Of the last dimension; infinite where it is empty, as FlashAttention has it."""
    if not logits.shape[-1]:
        return np.full((*logits.shape[:-1], 1), np.inf)
    most = logits.max(-1, keepdims=True)
    return most + np.log(np.exp(logits - most).sum(-1, keepdims=True))


def max_pooling_1d_varlen(
    input: Tensor3,
    cu_seqlens_q: Tensor1,
    cu_seqlens_k: Tensor1,
    cache_lens: Tensor1,
    max_seqlen_q: int,
    max_context_len: int,
    local_blocks: int,
    init_blocks: int,
    block_size: int = 64,
    stride: int = 16,
    total_q: int = -1,
) -> torch.Tensor:
    """How good each block is: as good as the best of its keys, or infinitely.

    Args:
        input: [KV heads, T, columns] scores of keys, float16 or bfloat16.
        cu_seqlens_q, cu_seqlens_k: int32 [B + 1] query tokens and keys of each row.
        cache_lens: int32 [B] tokens before a row's first query.
        local_blocks: before that of a query, which are infinitely good as it is itself.
        init_blocks: of a row, which are so too.
        block_size: in tokens; stride: tokens from one key to the next.

    Returns:
        [KV heads, T, blocks of max_context_len] like `input`; -inf for a block without keys.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("max_pooling_1d_varlen", _POOLING_SOURCE)
    call.needs_dtype("input", input, *_DTYPES)
    for name, tensor in (
        ("cu_seqlens_q", cu_seqlens_q),
        ("cu_seqlens_k", cu_seqlens_k),
        ("cache_lens", cache_lens),
    ):
        call.needs_dtype(name, tensor, torch.int32)
    rows = len(cu_seqlens_q) - 1
    call.needs_shape("cu_seqlens_k", cu_seqlens_k, rows + 1)
    call.needs_shape("cache_lens", cache_lens, rows)
    call.needs(block_size > 0, "block_size must be positive", block_size)
    call.needs(stride > 0, "stride must be positive", stride)
    heads, tokens = input.shape[:2]
    blocks = -(-max_context_len // block_size)
    pooled = torch.zeros(heads, tokens, blocks, dtype=input.dtype, device=input.device)
    launch(
        _POOLING, scores=input.contiguous(), cu_seqlens_q=cu_seqlens_q.contiguous(),
        cu_seqlens_k=cu_seqlens_k.contiguous(), cache_lens=cache_lens.contiguous(),
        local_blocks=local_blocks, init_blocks=init_blocks, block_size=block_size,
        each=block_size // stride, pooled=pooled,
    )  # fmt: skip
    return pooled


def _run_pooling(
    memory: KernelMemory,
    *,
    scores: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    cache_lens: torch.Tensor,
    local_blocks: int,
    init_blocks: int,
    block_size: int,
    each: int,
    pooled: torch.Tensor,
) -> None:
    starts, keys, cached = map(memory.ints, (cu_seqlens_q, cu_seqlens_k, cache_lens))
    check_offsets(memory, "cu_seqlens_q", starts, scores.shape[1])
    blocks = np.arange(pooled.shape[2])
    first = np.maximum(each * blocks - 1, 0)
    for row in range(len(cached)):
        count = int(keys[row + 1] - keys[row])
        last = np.minimum(first + each + 1, count)
        for token in range(starts[row], starts[row + 1]):
            newest = (token - starts[row] + cached[row]) // block_size
            forced = (newest >= blocks) & (newest <= blocks + local_blocks)
            forced |= blocks < init_blocks
            for head in range(len(scores)):
                found = np.where(forced, np.inf, -np.inf)
                for block in np.flatnonzero(~forced & (last > first)):
                    inside = np.arange(first[block], last[block])
                    where = np.full_like(inside, head), np.full_like(inside, token), inside
                    # A comparison with what is no number keeps what was there.
                    found[block] = np.fmax.reduce(memory.numbers("input", scores, *where))
                where = np.full_like(blocks, head), np.full_like(blocks, token), blocks
                memory.store("output", pooled, found, *where)


def selected_slots(
    out: Tensor3,
    topk_idx: Tensor3,
    block_table: Tensor2,
    token_to_bs: Tensor1,
    token_pos_in_bs: Tensor1,
    seqlen_q: Tensor1,
    *,
    sizes: tuple[int, int, int] | None = None,
) -> None:
    """Where the keys of selected blocks lie, in a cache whose slots have a place for each head.

    Args:
        out: int32 [T, heads, topk * block] the output; 0 for keys that a query does not see.
        topk_idx: int32 [heads, T, topk] blocks; none where it is negative.
        block_table: int32 [B, width] slot of each key of a row.
        token_to_bs, token_pos_in_bs: int32 [T] row of a query, and how many keys it sees.
        seqlen_q: int32 [B] keys of a row.
        sizes: topk, heads and keys of a block, for which the kernel is compiled; None where nothing
            says for which.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("get_block_table", _TABLE_SOURCE)
    heads, tokens, topk = topk_idx.shape
    if sizes is not None:
        topk, heads, block = sizes
        call.needs_shape("out", out, tokens, heads, topk * block)
    rows = len(block_table)
    call.needs_shape("out", out, tokens, heads, None)
    call.needs(
        topk > 0 and out.shape[2] % topk == 0, f"out must have whole blocks of {topk}", out.shape[2]
    )
    for name, tensor, *shape in (
        ("topk_idx", topk_idx, heads, tokens, topk),
        ("block_table", block_table, rows, None),
        ("token_to_bs", token_to_bs, tokens),
        ("token_pos_in_bs", token_pos_in_bs, tokens),
        ("seqlen_q", seqlen_q, rows),
        ("out", out, tokens, heads, None),
    ):
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_shape(name, tensor, *shape)
        call.needs_contiguous(name, tensor)
    if tokens:
        launch(
            _TABLE, out=out, topk_idx=topk_idx, block_table=block_table, token_to_bs=token_to_bs,
            token_pos_in_bs=token_pos_in_bs, seqlen_q=seqlen_q,
        )  # fmt: skip


def _run_table(
    memory: KernelMemory,
    *,
    out: torch.Tensor,
    topk_idx: torch.Tensor,
    block_table: torch.Tensor,
    token_to_bs: torch.Tensor,
    token_pos_in_bs: torch.Tensor,
    seqlen_q: torch.Tensor,
) -> None:
    tokens, heads, entries = out.shape
    size = entries // topk_idx.shape[2]
    rows, seen = map(memory.ints, (token_to_bs, token_pos_in_bs))
    blocks = memory.ints(topk_idx)
    for token in range(tokens):
        row = rows[token : token + 1]
        most = min(seen[token], int(memory.entries("seqlen_q", seqlen_q, row)[0]))
        for head in range(heads):
            chosen = blocks[head, token]
            places = (chosen[:, None] * size + np.arange(size)).ravel()
            there = np.flatnonzero((places >= 0) & (places < most))
            at = places[there]
            slots = memory.entries("block_table", block_table, np.repeat(row, len(at)), at)
            found = np.zeros(entries, dtype=np.int64)
            found[there] = heads * slots + head
            where = np.full(entries, token), np.full(entries, head), np.arange(entries)
            memory.store("out", out, found, *where)


_SCORES = ModelKernel("infllmv2_attn_stage1", _run_scores, _SCORES_SOURCE)
_POOLING = ModelKernel("infllm_v2_max_pooling_1d_varlen", _run_pooling, _POOLING_SOURCE)
_TABLE = ModelKernel("get_block_table", _run_table, _TABLE_SOURCE)
