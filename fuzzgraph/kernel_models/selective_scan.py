"""The selective scan over the tokens of prompts, one after the other, as Mamba1 has it.

Kernels compute it in chunks, by which sums are ordered otherwise.

Source: vLLM 0.17 to 0.33, csrc/mamba/mamba_ssm/selective_scan_fwd.cu; state-spaces/mamba 2.2,
selective_scan_interface.py `selective_scan_ref`.
"""

from __future__ import annotations

import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused

__all__ = ["selective_scan_fwd"]

_NAME = "selective_scan_fwd"
_LINEAR_FROM = 20.0
"""From here on softplus is its argument (selective_scan_fwd.cu)."""


def selective_scan_fwd(
    u: torch.Tensor,
    delta: torch.Tensor,
    A: torch.Tensor,
    B: torch.Tensor,
    C: torch.Tensor,
    D: torch.Tensor | None,
    z: torch.Tensor | None,
    delta_bias: torch.Tensor | None,
    delta_softplus: bool,
    query_start_loc: torch.Tensor | None,
    cache_indices: torch.Tensor | None,
    has_initial_state: torch.Tensor | None,
    ssm_states: torch.Tensor,
    skipped: int,
    block_size: int = 1024,
    block_idx_first_scheduled_token: torch.Tensor | None = None,
    block_idx_last_scheduled_token: torch.Tensor | None = None,
    initial_state_idx: torch.Tensor | None = None,
    cu_chunk_seqlen: torch.Tensor | None = None,
    last_chunk_indices: torch.Tensor | None = None,
) -> None:
    """Outputs in the place of `z`, or of `delta` without a gate, and states behind the last tokens.

    Args:
        u, delta, z: [columns, tokens] inputs, steps and gates.
        A: [columns, numbers] decays; B, C: [groups, numbers, tokens], one group or as many as
            divide the columns; D, delta_bias: [columns].
        query_start_loc: int32 [requests + 1], where each request's tokens begin.
        cache_indices: int32 [requests], the slot of each one's state.
        has_initial_state: bool [requests], whether its slot holds a state before.
        ssm_states: [slots, columns, numbers], written.
        skipped: a slot whose request is not computed.
        block_size: read with the arguments behind it alone, which are for states that prefix caches
            keep at the ends of blocks.

    Raises:
        KernelNotModelled: states of blocks, or requests that are not packed.
        KernelRefused: the real host code refuses such a call.
    """
    of_blocks = block_idx_first_scheduled_token, block_idx_last_scheduled_token, initial_state_idx
    if any(each is not None for each in (*of_blocks, cu_chunk_seqlen, last_chunk_indices)):
        raise KernelNotModelled(f"{_NAME}: states at the ends of blocks")
    if query_start_loc is None or cache_indices is None or has_initial_state is None:
        raise KernelNotModelled(f"{_NAME}: requests that are not packed")
    _demand_sizes(u, delta, B, query_start_loc, cache_indices, has_initial_state)
    steps = delta.float() + (0.0 if delta_bias is None else delta_bias.float()[:, None])
    if delta_softplus:
        steps = torch.nn.functional.softplus(steps, threshold=_LINEAR_FROM)
    each = len(u) // len(B)
    ins, outs = (part.float().repeat_interleave(each, dim=0) for part in (B, C))
    result = delta if z is None else z
    gates = None if z is None else torch.nn.functional.silu(z.float())
    ends = query_start_loc.tolist()
    slots, goes_on = cache_indices.tolist(), has_initial_state.tolist()
    for row, (start, stop) in enumerate(zip(ends, ends[1:], strict=False)):
        if slots[row] == skipped:
            continue
        state = ssm_states[slots[row]].float() * float(goes_on[row])
        for token in range(start, stop):
            step, taken = steps[:, token, None], u[:, token].float()
            state = state * (step * A).exp() + step * ins[..., token] * taken[:, None]
            found = (state * outs[..., token]).sum(-1)
            if D is not None:
                found = found + D.float() * taken
            result[:, token] = found if gates is None else found * gates[:, token]
        ssm_states[slots[row]] = state.to(ssm_states.dtype)


def _demand_sizes(
    u: torch.Tensor,
    delta: torch.Tensor,
    B: torch.Tensor,
    offsets: torch.Tensor,
    slots: torch.Tensor,
    flags: torch.Tensor,
) -> None:
    rows = len(offsets) - 1
    if slots.dim() != 1 or len(slots) != rows or len(flags) != rows:
        given = f"{' by '.join(map(str, slots.shape))} slots, {len(flags)} flags"
        raise KernelRefused(f"{_NAME}: {given} for {rows} requests")
    for name, tensor in (("query_start_loc", offsets), ("cache_indices", slots)):
        if tensor.dtype != torch.int32:
            raise KernelRefused(f"{_NAME}: {name} must be int32, got {tensor.dtype}")
    if delta.shape != u.shape or len(u) % len(B):
        sizes = f"{list(u.shape)}, {list(delta.shape)} and {len(B)} groups"
        raise KernelRefused(f"{_NAME}: sizes do not fit: {sizes}")
