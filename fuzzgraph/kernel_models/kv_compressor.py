"""DeepSeek V4's compressor in a decode: several tokens leave one key in a cache of their own.

Source: sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c_plan.cuh, c4_v2.cuh and c128_v2.cuh. A plan says
for each row where its token's state is kept and where the states of its group lie; a weighted sum
of these is the group's key, once the group is whole. `page_store` writes it. Left out are plans of
a prefill.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import Ints, KernelMemory, as_numbers

__all__ = ["PLAN_BYTES", "compress_decode", "plan_compress_decode", "plan_numbers"]

_PLAN_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c_plan.cuh"
_SUM_SOURCE = "sglang 0.5.12 to 0.5.23, csrc/deepseek_v4/c4_v2.cuh and c128_v2.cuh"
PLAN_BYTES = 16
"""Of a row in the plan: its length, where its state goes, the states' pages of the group before and
of its own; four int32."""
_OVERLAPS = 4
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
    for name, tensor, dtype in (
        ("req_pool_indices", req_pool_indices, torch.int64),
        ("req_to_token", req_to_token, torch.int32),
        ("full_to_state", full_to_state, torch.int64),
        ("seq_lens", seq_lens, torch.int64),
    ):
        call.needs_dtype(name, tensor, dtype)
        call.needs_contiguous(name, tensor)
    call.needs_shape("seq_lens", seq_lens, None)
    rows = seq_lens.shape[0]
    call.needs_shape("req_pool_indices", req_pool_indices, rows)
    call.needs_shape("req_to_token", req_to_token, None, None)
    call.needs_shape("full_to_state", full_to_state, None)
    ring_for_4 = not use_req_ring or compress_ratio == _OVERLAPS
    call.needs(ring_for_4, "use_req_ring needs groups of 4", compress_ratio)
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
        by_request=use_req_ring or (rings_of_requests and compress_ratio != _OVERLAPS),
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
    overlap = ratio == _OVERLAPS
    element = width * (4 if overlap else 2)
    call.needs_shape("kv_score_input", kv_score_input, None, element)
    rows = kv_score_input.shape[0]
    sizes: dict[str, tuple[torch.Tensor, tuple[int | None, ...]]] = {
        "kv_score_buffer": (kv_score_buffer, (None, ratio, element)),
        "kv_score_input": (kv_score_input, (rows, element)),
        "out": (out, (rows, width)),
        "ape": (ape, (ratio * (2 if overlap else 1), width)),
        "plan": (plan, (rows, PLAN_BYTES)),
    }
    for name, (tensor, shape) in sizes.items():
        call.needs_shape(name, tensor, *shape)
        call.needs_contiguous(name, tensor)
    call.needs_dtype("plan", plan, torch.uint8)
    stored, given, made = dtypes
    call.needs_dtype("kv_score_buffer", kv_score_buffer, stored)
    call.needs_dtype("kv_score_input", kv_score_input, given)
    call.needs_dtype("ape", ape, given)
    call.needs_dtype("out", out, made)
    launch(
        _COMPRESSION,
        states=kv_score_buffer,
        new=kv_score_input,
        out=out,
        ape=ape,
        plan=plan,
        overlap=overlap,
    )


# ---- the bodies


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
    before = np.maximum(last - ratio, 0)

    def state_of(positions: Ints) -> Ints:
        if by_request:
            return requests * ring + positions % ring
        slots = memory.entries("req_to_token", req_to_token, requests, positions)
        places = memory.entries("full_to_state", full_to_state, slots)
        return places // page * ring + places % ring

    own = state_of(last)
    numbers = np.stack([lens, own, state_of(before) // ratio, own // ratio], axis=1)
    rows = torch.from_numpy(np.ascontiguousarray(numbers.astype(np.int32)).view(np.uint8))
    memory.store("plan", plan, rows, np.arange(len(lens)))


def plan_numbers(memory: KernelMemory, plan: torch.Tensor) -> Ints:
    """int [B, 4] of a plan's bytes."""
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
    width, bias = out.shape[-1], as_numbers(ape)
    numbers = plan_numbers(memory, plan)
    by_state = states.view(pages * ratio, element)
    memory.store("kv_score_buffer", by_state, new, numbers[:, 1])
    inside = np.arange(ratio)
    for row, (length, _, before, own) in enumerate(numbers.tolist()):
        if length % ratio:
            continue
        at = np.full_like(inside, own), inside
        kept = memory.numbers("kv_score_buffer", states, *at)
        if overlap:
            # | value for the next sum | value | score for the next sum | score |
            values, scores = kept[:, width : 2 * width], kept[:, 3 * width :]
            earlier = np.zeros((ratio, width)), np.full((ratio, width), -np.inf)
            if length > ratio:
                at = np.full_like(inside, before), inside
                kept = memory.numbers("kv_score_buffer", states, *at)
                earlier = kept[:, :width], kept[:, 2 * width : 3 * width]
            values = np.concatenate((earlier[0], values))
            scores = np.concatenate((earlier[1], scores))
        else:
            values, scores = kept[:, :width], kept[:, width:]
        logits = scores + bias
        weights = np.exp(logits - logits.max(0))
        total = (values * weights).sum(0) / weights.sum(0)
        memory.store("out", out, torch.from_numpy(total)[None], np.array([row]))


_COMPRESS_PLANNER = ModelKernel("plan_compress_decode", _plan_groups, _PLAN_SOURCE)
_COMPRESSION = ModelKernel("compress_forward", _compress_groups, _SUM_SOURCE)
