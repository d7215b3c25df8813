"""Selection of keys among blocks that another layer's indexer has left: DeepSeek V4.1's candidates.

A source's scores become one number for each block of eight keys; the best blocks are sorted and
looked up in its pages; DeepGEMM scores the keys of these blocks alone, by a schedule that holds
them, in bfloat16; of these scores the best are written as slots. Source: sglang 0.5.21 to 0.5.23,
csrc/deepseek_v4/block_amax.cuh, candidate_block_table.cuh and topk_bf16_small.cuh; of what
DeepGEMM has (sgl-deep-gemm 0.2) the contract in dsv4/candidate_table.py and dsv4/index_logits.py.
How its schedule looks nobody but its own kernel reads; here it has the slots of each row's blocks.
Left out are blocks of 16, the stride of pages that DeepGEMM needs, and for which numbers of heads
it is compiled.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2, Tensor4
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers
from fuzzgraph.kernel_models.mxfp4 import FP4_SCALE_BYTES, fp4_numbers, fp4_pages, scale_bytes
from fuzzgraph.kernel_models.sparse_indexer import best_keys_of_row, store_chosen

__all__ = [
    "SCORING",
    "fp8_fp4_paged_sparse_mqa_logits",
    "get_paged_sparse_mqa_logits_metadata",
    "maxima_of_blocks",
    "select_among_blocks",
    "sort_blocks",
]

SCORING = ("get_paged_sparse_mqa_logits_metadata", "fp8_fp4_paged_sparse_mqa_logits")
"""Functions of DeepGEMM."""
_AMAX_SOURCE = "sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/block_amax.cuh"
_SORT_SOURCE = "sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/candidate_block_table.cuh"
_SELECT_SOURCE = "sglang 0.5.21 to 0.5.23, csrc/deepseek_v4/topk_bf16_small.cuh"
_LOGITS_SOURCE = "sglang 0.5.21 to 0.5.23, dsv4/candidate_table.py and dsv4/index_logits.py"
_BLOCK = 8
"""Keys of a block: kBlockTokens."""
_MOST_BLOCKS = 2048  # kMaxTopK of both selections
_NO_BLOCK = 2**31 - 1
_PAIRED = "rows of one request that follow each other must have one row of page_table"


def maxima_of_blocks(
    scores: Tensor2, seq_lens: Tensor1, amax_scores: Tensor2, topk: int, *, dtypes: Any
) -> None:
    """Write the greatest score of each block of eight; infinity for the block of the last key.

    Args:
        scores: [B, N] in the first of `dtypes`, N a multiple of 8.
        seq_lens: int32 [B] keys of each row.
        amax_scores: [B, blocks] the output, in the second of `dtypes`.
        topk: rows with no more blocks than these are left out; 0: none.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("amax8_varlen", _AMAX_SOURCE)
    for name, tensor, dtype in zip(
        ("scores", "amax_scores"), (scores, amax_scores), dtypes, strict=True
    ):
        call.needs_dtype(name, tensor, dtype)
        call.needs_contiguous_last(name, tensor)
    rows = len(scores)
    aligned = rows < 2 or scores.stride(0) % _BLOCK == 0
    call.needs(aligned, "rows of scores must begin with a block", list(scores.stride()))
    call.needs_dtype("seq_lens", seq_lens, torch.int32)
    call.needs_shape("seq_lens", seq_lens, rows)
    call.needs_shape("amax_scores", amax_scores, rows, None)
    launch(_AMAX, scores=scores, seq_lens=seq_lens, amax_scores=amax_scores, topk=topk)


def sort_blocks(
    indices: Tensor2, seq_lens: Tensor1, page_table: Tensor2, out_pages: Tensor2, page_size: int
) -> None:
    """Put each row's blocks in order, in place, and write where they lie in the pool.

    Args:
        indices: int32 [B, K] numbers of blocks in any order, -1 for none; behind the row's own
            INT32_MAX is written. A row with no more blocks than K gets all of them.
        seq_lens: int32 [B] keys of each row.
        page_table: int32 [B, pages]; page_size: keys of a page, a power of two of 8 at least.
        out_pages: int32 [B, K] a block's first slot divided by 8, the same behind a row's own.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("candidate_block_table", _SORT_SOURCE)
    rows, blocks = indices.shape
    given = {"indices": indices, "page_table": page_table, "out_pages": out_pages}
    for name, tensor in given.items():
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_contiguous_last(name, tensor)
    call.needs_dtype("seq_lens", seq_lens, torch.int32)
    call.needs_shape("seq_lens", seq_lens, rows)
    call.needs_shape("page_table", page_table, rows, None)
    call.needs_shape("out_pages", out_pages, rows, blocks)
    power = page_size >= _BLOCK and not page_size & (page_size - 1)
    call.needs(power, "page_size must be a power of two of at least 8", page_size)
    rule = f"topk_blocks must be positive and at most {_MOST_BLOCKS}"
    call.needs(0 < blocks <= _MOST_BLOCKS, rule, blocks)
    launch(
        _SORT,
        indices=indices,
        seq_lens=seq_lens,
        page_table=page_table,
        out_pages=out_pages,
        page_size=page_size,
    )


def get_paged_sparse_mqa_logits_metadata(
    seq_lens: Tensor1,
    page_table: Tensor2,
    request_ids: Tensor1,
    page_size: int,
    blocks: Tensor2,
    q_dtype: torch.dtype,
    block_size: int,
) -> torch.Tensor:
    """The schedule by which the keys of each row's blocks are scored.

    Args:
        seq_lens: int32 [B] keys of each row; page_table: int32 [B, pages].
        request_ids: int32 [B]; rows that follow each other with one number may be scored together.
        page_size: keys of a page.
        blocks: int32 [B, K] in order; a row's own alone are read, as many as it has, K at most.
        q_dtype: of the queries' numbers; block_size: keys of a block.

    Returns:
        uint8 [n], of which the kernel that scores makes sense.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("get_paged_sparse_mqa_logits_metadata", _LOGITS_SOURCE)
    rows, count = blocks.shape
    call.needs(block_size == _BLOCK, "a block must have 8 keys", block_size)
    call.needs_dtype("seq_lens", seq_lens, torch.int32)
    call.needs_shape("seq_lens", seq_lens, rows)
    call.needs_dtype("request_ids", request_ids, torch.int32)
    call.needs_shape("request_ids", request_ids, rows)
    for name, tensor in (("page_table", page_table), ("blocks", blocks)):
        call.needs_dtype(name, tensor, torch.int32)
        call.needs_contiguous_last(name, tensor)
    call.needs_shape("page_table", page_table, rows, None)
    call.needs(q_dtype == torch.int8, "queries must be of FP4, two in an int8", q_dtype)
    schedule = torch.empty(rows * (1 + count) * 4, dtype=torch.uint8, device=blocks.device)
    launch(
        _SCHEDULE,
        seq_lens=seq_lens,
        page_table=page_table,
        request_ids=request_ids,
        page_size=page_size,
        blocks=blocks,
        schedule=schedule,
    )
    return schedule


def fp8_fp4_paged_sparse_mqa_logits(
    q: tuple[torch.Tensor, torch.Tensor],
    k_cache: Tensor4,
    weights: Tensor2,
    schedule: Tensor1,
    topk_blocks: int,
    block_size: int,
) -> torch.Tensor:
    """What queries think of the keys of their rows' blocks, one block behind the other.

    Args:
        q: int8 [B, 1, heads, D / 2] two numbers in a byte; int32 [B, 1, heads] the exponents of
            their scales.
        k_cache: uint8 [pages, page_size, 1, D / 2 + 4].
        weights: bfloat16 [B, heads].
        schedule: of `get_paged_sparse_mqa_logits_metadata` for as many rows and blocks.
        topk_blocks: blocks of a row; block_size: keys of a block.

    Returns:
        bfloat16 [B, topk_blocks * 8]; nothing is written behind a row's own blocks.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("fp8_fp4_paged_sparse_mqa_logits", _LOGITS_SOURCE)
    numbers, exponents = q
    call.needs(block_size == _BLOCK, "a block must have 8 keys", block_size)
    call.needs_dtype("q", numbers, torch.int8)
    call.needs_shape("q", numbers, None, 1, None, None)
    rows, _, heads, half = numbers.shape
    call.needs_dtype("the scales of q", exponents, torch.int32)
    call.needs_shape("the scales of q", exponents, rows, 1, heads)
    call.needs_dtype("k_cache", k_cache, torch.uint8)
    call.needs_shape("k_cache", k_cache, None, None, 1, half + FP4_SCALE_BYTES)
    call.needs_dtype("weights", weights, torch.bfloat16)
    call.needs_shape("weights", weights, rows, heads)
    call.needs_dtype("schedule", schedule, torch.uint8)
    call.needs_shape("schedule", schedule, rows * (1 + topk_blocks) * 4)
    shape = rows, topk_blocks * _BLOCK
    logits = torch.empty(shape, dtype=torch.bfloat16, device=weights.device)
    if rows:
        launch(
            _SPARSE_SCORES,
            numbers=numbers,
            exponents=exponents,
            cache=k_cache,
            weights=weights,
            schedule=schedule,
            logits=logits,
        )
    return logits


def select_among_blocks(
    scores: Tensor2, seq_lens: Tensor1, page_table: Tensor2, page_indices: Tensor2, page_size: int
) -> None:
    """The slots of each row's best scores, as many as the output has columns; -1 behind them.

    Args:
        scores: bfloat16 [B, N]; seq_lens: int32 [B] scores of each row.
        page_table: int32 [B, pages]; page_size: scores of a page, a power of two.
        page_indices: int32 [B, K] the output.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("topk_transform_bf16", _SELECT_SOURCE)
    rows = len(scores)
    call.needs_dtype("scores", scores, torch.bfloat16)
    given = {"scores": scores, "page_table": page_table, "page_indices": page_indices}
    for name, tensor in given.items():
        call.needs_contiguous_last(name, tensor)
        call.needs_shape(name, tensor, rows, None)
    for name, tensor in (("page_table", page_table), ("page_indices", page_indices)):
        call.needs_dtype(name, tensor, torch.int32)
    call.needs_dtype("seq_lens", seq_lens, torch.int32)
    call.needs_shape("seq_lens", seq_lens, rows)
    power = page_size > 0 and not page_size & (page_size - 1)
    call.needs(power, "page_size must be a power of two", page_size)
    launch(
        _SELECT,
        scores=scores,
        seq_lens=seq_lens,
        page_table=page_table,
        page_indices=page_indices,
        page_size=page_size,
    )


# ---- the bodies


def _blocks_of(lens: Ints) -> Ints:
    """[B] blocks that rows have, the last perhaps not whole."""
    found: Ints = -(-np.maximum(lens, 0) // _BLOCK)
    return found


def _write_maxima(
    memory: KernelMemory,
    *,
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    amax_scores: torch.Tensor,
    topk: int,
) -> None:
    for row, count in enumerate(_blocks_of(memory.ints(seq_lens)).tolist()):
        if count <= topk or not count:
            continue
        places = np.arange(count * _BLOCK)  # what lies behind the last key is read, and not used
        read = memory.numbers("scores", scores, np.full_like(places, row), places)
        best = read.reshape(count, _BLOCK).max(1)
        best[-1] = np.inf
        at = np.arange(count)
        memory.store("amax_scores", amax_scores, best, np.full_like(at, row), at)


def _sort_each_row(
    memory: KernelMemory,
    *,
    indices: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    out_pages: torch.Tensor,
    page_size: int,
) -> None:
    rows, most = indices.shape
    for row, count in enumerate(_blocks_of(memory.ints(seq_lens)).tolist()):
        own = np.arange(count)
        if count > most:
            at = np.arange(most)
            found = memory.entries("indices", indices, np.full_like(at, row), at)
            own = np.unique(found[found >= 0])
        slots = _looked_up(memory, page_table, row, own, page_size)
        for name, tensor, values in (("indices", indices, own), ("out_pages", out_pages, slots)):
            whole = np.full(most, _NO_BLOCK, dtype=np.int64)
            whole[: len(values)] = values
            memory.store(name, tensor, whole[None], np.array([row]))


def _looked_up(
    memory: KernelMemory, page_table: torch.Tensor, row: int, blocks: Ints, page_size: int
) -> Ints:
    """First slots of blocks, divided by 8."""
    in_page = page_size // _BLOCK
    at = np.full_like(blocks, row), blocks // in_page
    found: Ints = memory.entries("page_table", page_table, *at) * in_page + blocks % in_page
    return found


def _write_schedule(
    memory: KernelMemory,
    *,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    request_ids: torch.Tensor,
    page_size: int,
    blocks: torch.Tensor,
    schedule: torch.Tensor,
) -> None:
    rows, most = blocks.shape
    requests, tables = memory.ints(request_ids), memory.ints(page_table)
    words = np.zeros((rows, 1 + most), dtype=np.int32)
    lens = memory.ints(seq_lens)
    for row, count in enumerate(np.minimum(_blocks_of(lens), most).tolist()):
        pages = -(-max(int(lens[row]), 0) // page_size)
        if row and requests[row] == requests[row - 1]:
            one, other = tables[row - 1, :pages], tables[row, :pages]
            if (one != other).any():
                memory.misused("request_ids", _PAIRED, f"{requests[row]} in row {row}")
        at = np.arange(count)
        own = memory.entries("blocks", blocks, np.full_like(at, row), at)
        words[row, 0] = count
        words[row, 1 : 1 + count] = _looked_up(memory, page_table, row, own, page_size)
    found = words.view(np.uint8).ravel()
    memory.store("schedule", schedule, found, np.arange(len(found)))


def _score_blocks(
    memory: KernelMemory,
    *,
    numbers: torch.Tensor,
    exponents: torch.Tensor,
    cache: torch.Tensor,
    weights: torch.Tensor,
    schedule: torch.Tensor,
    logits: torch.Tensor,
) -> None:
    page_size = cache.shape[1]
    whole = cache.as_strided((len(cache), page_size * cache.shape[3]), (cache.stride(0), 1))
    values, scales = fp4_pages(whole, page_size)
    queries = fp4_numbers(as_numbers(numbers), scale_bytes(exponents))[:, 0]
    words = memory.ints(schedule).astype(np.uint8).view(np.int32).reshape(len(numbers), -1)
    factors = as_numbers(weights)
    for row, (count, *first) in enumerate(words.tolist()):
        count = max(0, min(count, len(first)))  # of a plan of nothing, whose numbers are any
        slots = (
            np.array(first[:count], dtype=np.int64)[:, None] * _BLOCK + np.arange(_BLOCK)
        ).ravel()
        at = slots // page_size, slots % page_size
        read = as_numbers(memory.rows("k_cache", values, *at))
        keys = fp4_numbers(read, as_numbers(memory.rows("k_cache", scales, *at)))
        found = factors[row] @ np.maximum(queries[row] @ keys.T, 0)
        columns = np.arange(len(slots))
        memory.store("logits", logits, found, np.full_like(columns, row), columns)


def _write_best(
    memory: KernelMemory,
    *,
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_table: torch.Tensor,
    page_indices: torch.Tensor,
    page_size: int,
) -> None:
    for row, length in enumerate(memory.ints(seq_lens).tolist()):
        chosen = best_keys_of_row(memory, scores, row, length, page_indices.shape[1])
        at = np.full_like(chosen, row), chosen // page_size
        pages = memory.entries("page_table", page_table, *at)
        found = pages * page_size + chosen % page_size
        store_chosen(memory, "page_indices", page_indices, row, found)


_AMAX = ModelKernel("amax8_varlen", _write_maxima, _AMAX_SOURCE)
_SORT = ModelKernel("candidate_block_table", _sort_each_row, _SORT_SOURCE)
_SCHEDULE = ModelKernel(
    "get_paged_sparse_mqa_logits_metadata", _write_schedule, _LOGITS_SOURCE, plans=("schedule",)
)
_SPARSE_SCORES = ModelKernel(
    "fp8_fp4_paged_sparse_mqa_logits", _score_blocks, _LOGITS_SOURCE, plans=("schedule",)
)
_SELECT = ModelKernel("topk_transform_bf16", _write_best, _SELECT_SOURCE)
