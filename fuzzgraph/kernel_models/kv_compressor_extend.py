"""DeepSeek V4's compressor where rows have several tokens, as in a verify.

Source: sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c_plan.cuh, c4_v2.cuh and c128_v2.cuh. One plan
says which tokens end a group, and how many of the group's states come from the states that were
there before; the others come from the call's own tokens. A second plan says which tokens' states
are kept. Sums are made before states are written. On a device plans come in any order, here in that
of the tokens. Left out are plans that are made on the host, which prompts have.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.kv_compressor import (
    OVERLAPS,
    PLAN_BYTES,
    check_places,
    check_sums,
    group_key,
    plan_numbers,
    state_of,
)
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory

__all__ = ["compress_extend", "ends_of_groups", "plan_compress_extend"]

_PLAN_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c_plan.cuh"
_SUM_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c4_v2.cuh and c128_v2.cuh"
_WRITE_BYTES = 8
"""Of a row in the plan of states: its token and where its state goes; two int32."""
_RATIOS = (OVERLAPS, 128)
_MOST_ROWS = 1024  # kMaxPrefillBatchSize
_MOST_TOKENS = 1 << 16
_NONE = -1
"""In the first number of a row that plans nothing."""


def plan_compress_extend(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    pin_buffer: torch.Tensor,
    num_q_tokens: int,
    compress_ratio: int,
    swa_page_size: int,
    ring_size: int,
    use_req_ring: bool,
    use_cuda_graph: bool,
    *,
    rings_of_requests: bool = True,
    most_drafts: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Which tokens end a group, and which tokens' states are kept where (`plan_compress_prefill`).

    Args:
        req_pool_indices: int64 [B]; seq_lens: int64 [B], with the new tokens; extend_lens: int64
            [B] new tokens of each row.
        req_to_token: int32 [rows, width] slot of each position.
        full_to_state: int64 [slots] a slot in the pool of the window, whose pages have states.
        pin_buffer: uint8, for plans that are made on the host.
        num_q_tokens: rows of both plans.
        swa_page_size: slots of a page of the window; ring_size: states of it, or of a request.
        use_req_ring, rings_of_requests: as of `plan_compress_decode`.
        use_cuda_graph: whether plans made on the host are padded.
        most_drafts: last tokens of a row whose states are kept at least, as up to 0.5.17; None
            for as many as the ring allows.

    Returns:
        uint8 [num_q_tokens, 16] and uint8 [num_q_tokens, 8].

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("plan_compress_prefill", _PLAN_SOURCE)
    rows = check_places(
        call, req_pool_indices, req_to_token, full_to_state, seq_lens,
        ratio=compress_ratio, use_req_ring=use_req_ring,
    )  # fmt: skip
    for name, tensor, dtype in (
        ("extend_lens", extend_lens, torch.int64), ("pin_buffer", pin_buffer, torch.uint8)
    ):  # fmt: skip
        call.needs_dtype(name, tensor, dtype)
        call.needs_contiguous(name, tensor)
    call.needs_shape("extend_lens", extend_lens, rows)
    fits = rows <= num_q_tokens < _MOST_TOKENS and rows <= _MOST_ROWS
    call.needs(fits, f"{rows} rows need a plan of as many tokens or more", num_q_tokens)
    call.needs(
        compress_ratio in _RATIOS, f"compress_ratio must be one of {_RATIOS}", compress_ratio
    )
    call.needs(ring_size > 0, "ring_size must be positive", ring_size)  # the host divides by it
    divides = not (swa_page_size % ring_size or ring_size % compress_ratio)
    call.needs(divides, "ring_size must divide a page, and groups the ring", ring_size)
    window = _states_of_sum(compress_ratio)
    if most_drafts is not None:
        pad = min(ring_size - compress_ratio, most_drafts)
    else:
        pad = ring_size - window + 2 if ring_size > window else 0
    sizes = (PLAN_BYTES, _WRITE_BYTES)
    plan_c, plan_w = (
        torch.empty((num_q_tokens, size), dtype=torch.uint8, device=seq_lens.device)
        for size in sizes
    )
    launch(
        _EXTEND_PLANNER,
        req_pool_indices=req_pool_indices,
        req_to_token=req_to_token,
        full_to_state=full_to_state,
        seq_lens=seq_lens,
        extend_lens=extend_lens,
        ratio=compress_ratio,
        page=swa_page_size,
        ring=ring_size,
        pad=pad,
        by_request=use_req_ring or (rings_of_requests and compress_ratio != OVERLAPS),
        last_groups=compress_ratio == OVERLAPS and not use_req_ring,
        plan_c=plan_c,
        plan_w=plan_w,
    )
    return plan_c, plan_w


def compress_extend(
    kv_score_buffer: torch.Tensor,
    kv_score_input: torch.Tensor,
    out: torch.Tensor,
    ape: torch.Tensor,
    plan_c: torch.Tensor,
    plan_w: torch.Tensor,
    *,
    ratio: int,
    width: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
) -> None:
    """Sum up the states of each group that ends, then keep states of new tokens.

    Args:
        kv_score_buffer, kv_score_input, ape, ratio, width, dtypes: as of `compress_decode`.
        out: [plans, D] a row for each row of `plan_c`; written where it plans something.
        plan_c, plan_w: of `plan_compress_extend`.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("compress_forward", _SUM_SOURCE)
    call.needs_shape("plan_c", plan_c, None, PLAN_BYTES)
    call.needs_shape("plan_w", plan_w, None, _WRITE_BYTES)
    plans = {
        "plan_c": (plan_c, plan_c.shape[0], PLAN_BYTES),
        "plan_w": (plan_w, plan_w.shape[0], _WRITE_BYTES),
    }
    check_sums(
        call, kv_score_buffer, kv_score_input, out, ape, plans,
        rows=plan_c.shape[0], ratio=ratio, width=width, dtypes=dtypes,
    )  # fmt: skip
    tokens, writes = kv_score_input.shape[0], plan_w.shape[0]
    call.needs(tokens >= writes, f"plan_w has {writes} rows, more than tokens", tokens)
    launch(
        _EXTEND_SUMS,
        states=kv_score_buffer,
        new=kv_score_input,
        out=out,
        ape=ape,
        plan_c=plan_c,
        plan_w=plan_w,
    )


def ends_of_groups(memory: KernelMemory, plan_c: torch.Tensor) -> tuple[Ints, Ints, Ints]:
    """(rows of the plan that plan something, their lengths, their tokens)."""
    numbers = plan_numbers(memory, plan_c)
    rows = np.flatnonzero(numbers[:, 0] != _NONE)
    return rows, numbers[rows, 0], numbers[rows, 1] & 0xFFFF


def _states_of_sum(ratio: int) -> int:
    return ratio * (2 if ratio == OVERLAPS else 1)


# ---- the bodies


def _plan_tokens(
    memory: KernelMemory,
    *,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    extend_lens: torch.Tensor,
    ratio: int,
    page: int,
    ring: int,
    pad: int,
    by_request: bool,
    last_groups: bool,
    plan_c: torch.Tensor,
    plan_w: torch.Tensor,
) -> None:
    requests, lens = memory.ints(req_pool_indices), memory.ints(seq_lens)
    new = memory.ints(extend_lens)
    rows = np.repeat(np.arange(len(lens)), new)
    inside = np.arange(len(rows)) - (np.cumsum(new) - new)[rows]
    positions = (lens - new)[rows] + inside
    where: dict[str, Any] = dict(
        req_to_token=req_to_token, full_to_state=full_to_state, page=page, ring=ring,
        by_request=by_request,
    )  # fmt: skip

    ends = np.flatnonzero((positions + 1) % ratio == 0)
    window = _states_of_sum(ratio)
    from_states = window - np.minimum(inside[ends] + 1, window)
    before, own = np.full_like(ends, _NONE), rows[ends]  # as they are where no state is read
    reads = np.flatnonzero(from_states)
    at, request = positions[ends][reads], requests[rows[ends]][reads]
    before[reads] = state_of(memory, request, np.maximum(at - ratio, 0), **where) // ratio
    own[reads] = state_of(memory, request, at, **where) // ratio
    planned = np.stack([positions[ends] + 1, ends | from_states << 16, before, own], axis=1)
    _store_plan(memory, "plan_c", plan_c, planned, (_NONE, 0, _NONE, _NONE))

    first = np.minimum(lens // ratio * ratio - (window - ratio), lens - pad)
    keeps = positions >= first[rows]
    if last_groups:
        keeps |= positions % page >= page - ratio
    kept = np.flatnonzero(keeps)
    places = state_of(memory, requests[rows[kept]], positions[kept], **where)
    _store_plan(memory, "plan_w", plan_w, np.stack([kept, places], axis=1), (_NONE, _NONE))


def _store_plan(
    memory: KernelMemory, name: str, plan: torch.Tensor, planned: Ints, nothing: tuple[int, ...]
) -> None:
    behind = np.tile(np.array(nothing), (max(0, len(plan) - len(planned)), 1))
    numbers = np.ascontiguousarray(np.concatenate((planned, behind)).astype(np.int32))
    memory.store(name, plan, torch.from_numpy(numbers.view(np.uint8)), np.arange(len(numbers)))


def _sum_groups(
    memory: KernelMemory,
    *,
    states: torch.Tensor,
    new: torch.Tensor,
    out: torch.Tensor,
    ape: torch.Tensor,
    plan_c: torch.Tensor,
    plan_w: torch.Tensor,
) -> None:
    pages, ratio, element = states.shape
    overlap = len(ape) > ratio
    inside = np.arange(ratio)

    def taken(page: int, from_states: int, first: int) -> Any:
        """The states of a group: the first so many kept ones, then those of the call's tokens."""
        there = inside[: max(0, from_states)]
        kept = memory.numbers("kv_score_buffer", states, np.full_like(there, page), there)
        given = memory.numbers("kv_score_input", new, first + inside[len(there) :])
        return np.concatenate((kept, given))

    numbers = plan_numbers(memory, plan_c)
    for row in ends_of_groups(memory, plan_c)[0].tolist():
        length, packed, before, own = numbers[row].tolist()
        token, from_states = packed & 0xFFFF, packed >> 16
        first, earlier = token - ratio + 1, None
        if overlap and length > ratio:
            earlier = taken(before, from_states, first - ratio)
        total = group_key(taken(own, from_states - ratio * overlap, first), earlier, ape)
        memory.store("out", out, torch.from_numpy(total)[None], np.array([row]))
    writes = plan_numbers(memory, plan_w)
    writes = writes[writes[:, 0] != _NONE]
    if len(writes):
        rows = memory.rows("kv_score_input", new, writes[:, 0])
        by_state = states.view(pages * ratio, element)
        memory.store("kv_score_buffer", by_state, rows, writes[:, 1])


_PLANS = ("plan_c", "plan_w")
_EXTEND_PLANNER = ModelKernel("plan_compress_prefill", _plan_tokens, _PLAN_SOURCE, plans=_PLANS)
_EXTEND_SUMS = ModelKernel("compress_forward", _sum_groups, _SUM_SOURCE, plans=_PLANS)
