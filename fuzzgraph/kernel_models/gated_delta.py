"""The gated delta rule over the tokens of a prompt, one after the other.

Kernels compute it in chunks, by which sums are ordered otherwise.

Source: flash-linear-attention 0.3, fla/ops/gated_delta_rule/chunk.py `chunk_gated_delta_rule`;
transformers modeling_qwen3_next.py `torch_recurrent_gated_delta_rule`.
"""

from __future__ import annotations

import torch

from fuzzgraph.errors import KernelRefused

__all__ = ["chunk_gated_delta_rule"]

_LENGTH_EPSILON = 1e-6
_CHUNK = 64
"""Tokens of a chunk (fla/ops/gated_delta_rule/chunk.py)."""
_NAME = "chunk_gated_delta_rule"


def chunk_gated_delta_rule(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    g: torch.Tensor,
    beta: torch.Tensor,
    scale: float | None = None,
    initial_state: torch.Tensor | None = None,
    output_final_state: bool = False,
    cu_seqlens: torch.Tensor | None = None,
    chunk_indices: torch.Tensor | None = None,
    chunk_offsets: torch.Tensor | None = None,
    use_qk_l2norm_in_kernel: bool = False,
    core_attn_out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Outputs [1, tokens, value heads, columns] and states behind the last tokens [requests, ...].

    Args:
        q, k: [1, tokens, heads, key columns].
        v: [1, tokens, value heads, columns]; g, beta: [1, tokens, value heads], the logarithm of
            the decay, and the step.
        initial_state: [requests, value heads, columns, key columns].
        cu_seqlens: int [requests + 1], where each request's tokens begin.
        chunk_indices: int [chunks, 2], the request of each chunk and which of its chunks it is;
            worked out from `cu_seqlens` where it is left out.
        chunk_offsets: int [requests + 1], where each request's chunks begin; likewise.
        core_attn_out: not read.

    Raises:
        KernelRefused: the real host code refuses such a call, or the kernels would take other
            chunks than there are (fla/ops/common/chunk_delta_h.py, chunk_o.py).
    """
    if initial_state is None or cu_seqlens is None or not output_final_state:
        raise KernelRefused(f"{_NAME}: only packed requests with states are modelled")
    if len(q) != 1 or len(initial_state) != len(cu_seqlens) - 1:
        given, requests = len(initial_state), len(cu_seqlens) - 1
        raise KernelRefused(f"{_NAME}: {given} states, {requests} requests, {len(q)} batches")
    if use_qk_l2norm_in_kernel:
        q, k = _of_length_one(q), _of_length_one(k)
    each = v.shape[2] // k.shape[2]
    q, k = (part[0].float().repeat_interleave(each, dim=1) for part in (q, k))
    q = q * (k.shape[-1] ** -0.5 if scale is None else scale)
    values, decays, steps = v[0].float(), g[0].float().exp(), beta[0].float()
    out, states = torch.zeros_like(values), initial_state.float().clone()
    ends = cu_seqlens.tolist()
    _demand_chunks(ends, chunk_indices, chunk_offsets)
    for request, (start, stop) in enumerate(zip(ends, ends[1:], strict=False)):
        state = states[request]
        for token in range(start, stop):
            state = state * decays[token, :, None, None]
            known = (state * k[token, :, None]).sum(-1)
            step = steps[token, :, None] * (values[token] - known)
            state = state + step[..., None] * k[token, :, None]
            out[token] = (state * q[token, :, None]).sum(-1)
        states[request] = state
    return out[None].to(v.dtype), states


def _demand_chunks(
    ends: list[int], indices: torch.Tensor | None, offsets: torch.Tensor | None
) -> None:
    counts = [-(-(stop - start) // _CHUNK) for start, stop in zip(ends, ends[1:], strict=False)]
    chunks = [[request, chunk] for request, each in enumerate(counts) for chunk in range(each)]
    begins = [sum(counts[:request]) for request in range(len(counts))]
    if indices is not None and indices.tolist() != chunks:
        raise KernelRefused(f"{_NAME}: chunk_indices {indices.tolist()}, chunks are {chunks}")
    if offsets is not None and offsets.tolist()[: len(begins)] != begins:
        raise KernelRefused(f"{_NAME}: chunk_offsets {offsets.tolist()}, chunks begin at {begins}")


def _of_length_one(rows: torch.Tensor) -> torch.Tensor:
    rows = rows.float()
    return rows / (rows.square().sum(-1, keepdim=True) + _LENGTH_EPSILON).sqrt()
