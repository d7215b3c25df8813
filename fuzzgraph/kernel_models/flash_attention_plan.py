"""FlashAttention's plan of a batch: which rows a launch works on, and in how many parts.

Source: flash-attention 3.0.0b, hopper/flash_api.cpp (mha_fwd_get_scheduler_metadata, mha_fwd) and
flash_prepare_scheduler.cu. A launch that gets a plan works off what stands in it: rows that the
plan does not list are not computed. No result depends on the parts that a row is cut into, so rows
stay whole here.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["get_scheduler_metadata", "plan_size", "planned_rows"]

_SOURCE = "flash-attention 3.0.0b, hopper/flash_api.cpp and flash_prepare_scheduler.cu"
_DTYPES = (torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float32)


def get_scheduler_metadata(
    batch_size: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    num_heads: int,
    num_heads_k: int,
    headdim: int,
    cache_seqlens: Tensor1,
    qkv_dtype: torch.dtype = torch.bfloat16,
    headdim_v: int | None = None,
    cu_seqlens_q: Tensor1 | None = None,
    page_size: int | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    num_splits: int = 0,
    **_: Any,
) -> torch.Tensor:
    """The plan of a batch, int32 of `plan_size` elements.

    Args:
        cache_seqlens: int32 [batch_size] keys of each row.
        cu_seqlens_q: int32 [batch_size + 1] first query token of each row; each has `max_seqlen_q`
            if None.
        num_splits: the most parts of a row; 0 leaves it to the kernel.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("get_scheduler_metadata", _SOURCE)
    call.needs(qkv_dtype in _DTYPES, "qkv_dtype must be float16, bfloat16 or float8", qkv_dtype)
    rule = "number of heads in key/value must divide number of heads in query"
    divides = num_heads_k > 0 and num_heads % num_heads_k == 0
    call.needs(divides, rule, (num_heads, num_heads_k))
    call.needs(batch_size >= 0, "batch_size must not be negative", batch_size)
    call.needs(len(window_size) >= 2, "window_size must have two numbers", window_size)
    call.needs_dtype("cache_seqlens", cache_seqlens, torch.int32)
    call.needs_dtype("cu_seqlens_q", cu_seqlens_q, torch.int32)
    size = plan_size(batch_size, max_seqlen_q, max_seqlen_k, headdim, causal, window_size)
    plan = torch.empty(size, dtype=torch.int32, device=cache_seqlens.device)
    launch(
        _PLAN, plan=plan, cache_seqlens=cache_seqlens, cu_seqlens_q=cu_seqlens_q, rows=batch_size,
        max_seqlen_q=max_seqlen_q,
    )  # fmt: skip
    return plan


def plan_size(
    rows: int,
    max_seqlen_q: int,
    max_seqlen_k: int,
    headdim: int,
    causal: bool,
    window: tuple[int, int],
) -> int:
    """Elements of the plan of such a batch; a launch takes no other size."""
    left = -1 if window[0] >= max_seqlen_k - 1 else window[0]
    right = -1 if window[1] >= max_seqlen_q - 1 else window[1]
    # One token sees what it would see without a mask, which is dropped but for 65 to 128 columns.
    alone = max_seqlen_q == 1 and (left, right) == (-1, -1)
    if alone and (headdim <= 64 or headdim > 128):
        causal = False
    local = left >= 0 or (right >= 0 and not causal)
    vectors = 2 + (not local) + (causal or local)
    return 1 + vectors * _plan_vector(rows)


def _plan_vector(rows: int) -> int:
    """Elements of each part of a plan: rows, rounded up so that parts are aligned."""
    return -(-rows // 4) * 4


def planned_rows(memory: KernelMemory, plan: torch.Tensor | None, rows: int) -> set[int]:
    """Rows that a launch works on: all of them, or those that its plan lists."""
    if plan is None:
        return set(range(rows))
    vector = _plan_vector(rows)
    found = memory.ints(plan)
    splits, blocks, order = (found[at : at + rows] for at in (0, vector, 2 * vector))
    stray = [int(row) for row in order if not 0 <= row < rows]
    if stray or len(set(order.tolist())) < rows:
        rule = "scheduler_metadata must list each row of the batch once"
        memory.misused("scheduler_metadata", rule, f"rows {order.tolist()} of {rows}")
    if len(splits) and splits.min() < 1:
        rule = "scheduler_metadata must have one part or more of each row"
        memory.misused("scheduler_metadata", rule, f"{splits.tolist()}")
    worked = zip(order.tolist(), splits.tolist(), blocks.tolist(), strict=True)
    return {row for row, parts, count in worked if count > 0 and parts > 0}


def _get_scheduler_metadata(
    memory: KernelMemory,
    *,
    plan: torch.Tensor,
    cache_seqlens: torch.Tensor,
    cu_seqlens_q: torch.Tensor | None,
    rows: int,
    max_seqlen_q: int,
) -> None:
    lens = memory.entries("cache_seqlens", cache_seqlens, np.arange(rows))
    tokens = np.full(rows, max_seqlen_q)
    if cu_seqlens_q is not None:
        tokens = np.diff(memory.entries("cu_seqlens_q", cu_seqlens_q, np.arange(rows + 1)))
    vector = _plan_vector(rows)
    order = np.argsort(-lens, kind="stable")
    whole = np.ones(rows, dtype=np.int64)
    parts = [whole, (tokens[order] > 0).astype(np.int64), order]
    if len(plan) > 1 + 3 * vector:  # with a mask: heads that share a cache, which change no result
        parts.append(whole)
    for at, values in enumerate(parts):
        aligned = np.zeros(vector, dtype=np.int64)  # nobody reads what lies behind the rows
        aligned[:rows] = values
        places = at * vector + np.arange(vector)
        memory.store("scheduler_metadata", plan, torch.from_numpy(aligned), places)
    memory.store("scheduler_metadata", plan, torch.zeros(1), np.array([len(plan) - 1]))


_PLAN = ModelKernel("get_scheduler_metadata", _get_scheduler_metadata, _SOURCE, plans=("plan",))
