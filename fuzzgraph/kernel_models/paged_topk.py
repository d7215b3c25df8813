"""Selection of the best compressed keys of each query, written as slots: DeepSeek V4's indexer.

Source: sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/topk_v1.cuh. The second version, which follows a
plan, is `planned_topk`. Left out is what makes the scores.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor2
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.sparse_indexer import best_keys, store_chosen

__all__ = ["topk_transform_paged"]

_PAGED_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/topk_v1.cuh"
_MOST_KEYS = 1024  # kMaxTopK


def topk_transform_paged(
    scores: Tensor2,
    seq_lens: Tensor1,
    page_tables: Tensor2,
    out_page_indices: Tensor2,
    page_size: int,
    out_raw_indices: Tensor2 | None = None,
) -> None:
    """The slots of each row's best keys, as many as the output has columns; -1 behind them.

    Args:
        scores: float32 [B, N]; read in rows with more keys than columns.
        seq_lens: int32 [B] keys of each row.
        page_tables: int32 [B, pages]; page_size: keys of a page, a power of two.
        out_page_indices: int32 [B, K]; out_raw_indices: the keys' places in their rows.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("topk_transform", _PAGED_SOURCE)
    rows = scores.shape[0]
    call.needs_dtype("scores", scores, torch.float32)
    call.needs_contiguous_last("scores", scores)
    given = {
        "seq_lens": seq_lens,
        "page_tables": page_tables,
        "out_page_indices": out_page_indices,
        "out_raw_indices": out_raw_indices,
    }
    for name, tensor in given.items():
        if tensor is not None:
            call.needs_dtype(name, tensor, torch.int32)
            call.needs_contiguous_last(name, tensor)
            found = tensor.shape[0]
            call.needs(found == rows, f"{name} must have {rows} rows, as scores", found)
    power = page_size > 0 and not page_size & (page_size - 1)
    call.needs(power, "page_size must be a power of two", page_size)
    topk = out_page_indices.shape[1]
    call.needs(topk <= _MOST_KEYS, f"at most {_MOST_KEYS} keys can be selected", topk)
    launch(
        _PAGE_TOPK,
        scores=scores,
        seq_lens=seq_lens,
        page_tables=page_tables,
        page_size=page_size,
        slots=out_page_indices,
        places=out_raw_indices,
    )


def _run_page_topk(
    memory: KernelMemory,
    *,
    scores: torch.Tensor,
    seq_lens: torch.Tensor,
    page_tables: torch.Tensor,
    page_size: int,
    slots: torch.Tensor,
    places: torch.Tensor | None,
) -> None:
    for row, chosen in enumerate(best_keys(memory, scores, seq_lens, None, slots.shape[1])):
        at = np.full_like(chosen, row), chosen // page_size
        pages = memory.entries("page_tables", page_tables, *at)
        found = pages * page_size + chosen % page_size
        store_chosen(memory, "out_page_indices", slots, row, found)
        if places is not None:
            store_chosen(memory, "out_raw_indices", places, row, chosen)


_PAGE_TOPK = ModelKernel("topk_transform", _run_page_topk, _PAGED_SOURCE)
