"""DeepSeek V4's compressor in a decode: several tokens leave one key in a cache of their own.

Source: sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c_plan.cuh, c4_v2.cuh and c128_v2.cuh. A plan says
for each row where its token's state is kept and where the states of its group lie; a weighted sum
of these is the group's key, once the group is whole. `page_store` writes it. Where rows have
several tokens, `kv_compressor_extend` has the plans.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers

__all__ = [
    "OVERLAPS",
    "PLAN_BYTES",
    "check_places",
    "check_sums",
    "compress_decode",
    "group_key",
    "plan_compress_decode",
    "plan_numbers",
    "state_of",
]

_PLAN_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c_plan.cuh"
_SUM_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c4_v2.cuh and c128_v2.cuh"
PLAN_BYTES = 16
"""Of a row in the plan: its length, where its state goes, the states' pages of the group before and
of its own; four int32."""
OVERLAPS = 4
"""Groups of this size take the group before into their sum."""


def plan_compress_decode(
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    compress_ratio: int,
    swa_page_size: int,
    ring_size: int,
    use_req_ring: bool = False,
    *,
    rings_of_requests: bool = True,
) -> torch.Tensor:
    """Where the states of each row's group lie.

    Args:
        req_pool_indices: int64 [B]; seq_lens: int64 [B].
        req_to_token: int32 [rows, width] slot of each position.
        full_to_state: int64 [slots] a slot in the pool of the window, whose pages have states.
        swa_page_size: slots of such a page; ring_size: states of it, or of a request.
        use_req_ring: whether groups of 4 have a ring of states for each request as well.
        rings_of_requests: whether groups of 128 have one, as from 0.5.16 on.

    Returns:
        uint8 [B, 16].

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("plan_compress_decode", _PLAN_SOURCE)
    rows = check_places(
        call, req_pool_indices, req_to_token, full_to_state, seq_lens,
        ratio=compress_ratio, use_req_ring=use_req_ring,
    )  # fmt: skip
    plan = torch.empty((rows, PLAN_BYTES), dtype=torch.uint8, device=seq_lens.device)
    launch(
        _COMPRESS_PLANNER,
        req_pool_indices=req_pool_indices,
        req_to_token=req_to_token,
        full_to_state=full_to_state,
        seq_lens=seq_lens,
        ratio=compress_ratio,
        page=swa_page_size,
        ring=ring_size,
        by_request=use_req_ring or (rings_of_requests and compress_ratio != OVERLAPS),
        plan=plan,
    )
    return plan


def compress_decode(
    kv_score_buffer: torch.Tensor,
    kv_score_input: torch.Tensor,
    out: torch.Tensor,
    ape: torch.Tensor,
    plan: torch.Tensor,
    *,
    ratio: int,
    width: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
) -> None:
    """Keep each row's state, and sum up the states of the groups that it completes.

    Args:
        kv_score_buffer: [pages, ratio, width] states by page.
        kv_score_input: [B, width] of the new tokens: value and score, or with groups of 4 both for
            the sum of the next group, then for its own.
        out: [B, D]; written where a group is whole.
        ape: [states of a sum, D] added to the scores.
        plan: of `plan_compress_decode`.
        ratio: tokens of a group; width: D; dtypes: of the buffer, of what comes in, and of `out`.
            The kernel is compiled for these.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("compress_forward", _SUM_SOURCE)
    call.needs_shape("kv_score_input", kv_score_input, None, None)
    rows = kv_score_input.shape[0]
    check_sums(
        call, kv_score_buffer, kv_score_input, out, ape, {"plan": (plan, rows, PLAN_BYTES)},
        rows=rows, ratio=ratio, width=width, dtypes=dtypes,
    )  # fmt: skip
    overlap = ratio == OVERLAPS
    launch(
        _COMPRESSION,
        states=kv_score_buffer,
        new=kv_score_input,
        out=out,
        ape=ape,
        plan=plan,
        overlap=overlap,
    )


def check_sums(
    call: Call,
    kv_score_buffer: torch.Tensor,
    kv_score_input: torch.Tensor,
    out: torch.Tensor,
    ape: torch.Tensor,
    plans: dict[str, tuple[torch.Tensor, int, int]],
    *,
    rows: int,
    ratio: int,
    width: int,
    dtypes: tuple[torch.dtype, torch.dtype, torch.dtype],
) -> None:
    """Hold arguments of a sum against what its host code asks.

    Args:
        plans: name -> (plan, its rows, bytes of one).
        rows: of `out`.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    overlap = ratio == OVERLAPS
    element = width * (4 if overlap else 2)
    sizes: dict[str, tuple[torch.Tensor, tuple[int | None, ...]]] = {
        "kv_score_input": (kv_score_input, (None, element)),
        "kv_score_buffer": (kv_score_buffer, (None, ratio, element)),
        "out": (out, (rows, width)),
        "ape": (ape, (ratio * (2 if overlap else 1), width)),
        **{name: (plan, (count, size)) for name, (plan, count, size) in plans.items()},
    }
    for name, (tensor, shape) in sizes.items():
        call.needs_shape(name, tensor, *shape)
        call.needs_contiguous(name, tensor)
    for name, (plan, *_) in plans.items():
        call.needs_dtype(name, plan, torch.uint8)
    stored, given, made = dtypes
    call.needs_dtype("kv_score_buffer", kv_score_buffer, stored)
    call.needs_dtype("kv_score_input", kv_score_input, given)
    call.needs_dtype("ape", ape, given)
    call.needs_dtype("out", out, made)


def check_places(
    call: Call,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    *,
    ratio: int,
    use_req_ring: bool,
) -> int:
    """Hold what says where states lie against what a planner's host code asks; the number of rows.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    for name, tensor, dtype in (
        ("req_pool_indices", req_pool_indices, torch.int64),
        ("req_to_token", req_to_token, torch.int32),
        ("full_to_state", full_to_state, torch.int64),
        ("seq_lens", seq_lens, torch.int64),
    ):
        call.needs_dtype(name, tensor, dtype)
        call.needs_contiguous(name, tensor)
    call.needs_shape("seq_lens", seq_lens, None)
    rows: int = seq_lens.shape[0]
    call.needs_shape("req_pool_indices", req_pool_indices, rows)
    call.needs_shape("req_to_token", req_to_token, None, None)
    call.needs_shape("full_to_state", full_to_state, None)
    ring_for_4 = not use_req_ring or ratio == OVERLAPS
    call.needs(ring_for_4, "use_req_ring needs groups of 4", ratio)
    return rows


# ---- the bodies


def state_of(
    memory: KernelMemory,
    requests: Ints,
    positions: Ints,
    *,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    page: int,
    ring: int,
    by_request: bool,
) -> Ints:
    """Where the states of these tokens lie: in a ring of their request, or of a window's page."""
    if by_request:
        return requests * ring + positions % ring
    slots = memory.entries("req_to_token", req_to_token, requests, positions)
    places = memory.entries("full_to_state", full_to_state, slots)
    return places // page * ring + places % ring


def group_key(
    states: npt.NDArray[np.float64], earlier: npt.NDArray[np.float64] | None, ape: torch.Tensor
) -> npt.NDArray[np.float64]:
    """[D] the weighted sum of a group's states.

    Args:
        states: [ratio, ...] of the group's tokens.
        earlier: [ratio, ...] of the group before, which groups of 4 take in; None without one.
        ape: added to the scores.
    """
    width, ratio = ape.shape[-1], len(states)
    if len(ape) == ratio:
        values, scores = states[:, :width], states[:, width:]
    else:
        # | value for the next sum | value | score for the next sum | score |
        values, scores = states[:, width : 2 * width], states[:, 3 * width :]
        before = np.zeros((ratio, width)), np.full((ratio, width), -np.inf)
        if earlier is not None:
            before = earlier[:, :width], earlier[:, 2 * width : 3 * width]
        values, scores = np.concatenate((before[0], values)), np.concatenate((before[1], scores))
    logits = scores + as_numbers(ape)
    weights = np.exp(logits - logits.max(0))
    found: npt.NDArray[np.float64] = (values * weights).sum(0) / weights.sum(0)
    return found


def _plan_groups(
    memory: KernelMemory,
    *,
    req_pool_indices: torch.Tensor,
    req_to_token: torch.Tensor,
    full_to_state: torch.Tensor,
    seq_lens: torch.Tensor,
    ratio: int,
    page: int,
    ring: int,
    by_request: bool,
    plan: torch.Tensor,
) -> None:
    requests, lens = memory.ints(req_pool_indices), memory.ints(seq_lens)
    last = lens - 1
    where: dict[str, Any] = dict(
        req_to_token=req_to_token, full_to_state=full_to_state, page=page, ring=ring,
        by_request=by_request,
    )  # fmt: skip
    before = state_of(memory, requests, np.maximum(last - ratio, 0), **where)
    own = state_of(memory, requests, last, **where)
    numbers = np.stack([lens, own, before // ratio, own // ratio], axis=1)
    rows = torch.from_numpy(np.ascontiguousarray(numbers.astype(np.int32)).view(np.uint8))
    memory.store("plan", plan, rows, np.arange(len(lens)))


def plan_numbers(memory: KernelMemory, plan: torch.Tensor) -> Ints:
    """int [B, numbers] of a plan's bytes, four each."""
    raw = np.ascontiguousarray(memory.ints(plan).astype(np.uint8))
    found: Ints = raw.view(np.int32).astype(np.int64)
    return found


def _compress_groups(
    memory: KernelMemory,
    *,
    states: torch.Tensor,
    new: torch.Tensor,
    out: torch.Tensor,
    ape: torch.Tensor,
    plan: torch.Tensor,
    overlap: bool,
) -> None:
    pages, ratio, element = states.shape
    numbers = plan_numbers(memory, plan)
    by_state = states.view(pages * ratio, element)
    memory.store("kv_score_buffer", by_state, new, numbers[:, 1])
    inside = np.arange(ratio)

    def kept(page: int) -> npt.NDArray[np.float64]:
        return memory.numbers("kv_score_buffer", states, np.full_like(inside, page), inside)

    for row, (length, _, before, own) in enumerate(numbers.tolist()):
        if length % ratio:
            continue
        earlier = kept(before) if overlap and length > ratio else None
        total = group_key(kept(own), earlier, ape)
        memory.store("out", out, torch.from_numpy(total)[None], np.array([row]))


_COMPRESS_PLANNER = ModelKernel("plan_compress_decode", _plan_groups, _PLAN_SOURCE)
_COMPRESSION = ModelKernel("compress_forward", _compress_groups, _SUM_SOURCE)
