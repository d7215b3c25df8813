"""Merge of partial results, each with the logarithm to base 2 of its sum of exponentials.

Source: FlashInfer 0.6.12, flashinfer/cascade.py and include/flashinfer/attention/cascade.cuh.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory, as_numbers

__all__ = ["merge_state", "merge_states"]

_SOURCE = "FlashInfer 0.6.12, flashinfer/cascade.py and cascade.cuh"


def merge_state(
    v_a: torch.Tensor, s_a: torch.Tensor, v_b: torch.Tensor, s_b: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over two sets of keys, from attention over each.

    Args:
        v_a, v_b: [T, Hq, D].
        s_a, s_b: [T, Hq] to base 2; taken as float32.

    Returns:
        (like `v_a`, float32 [T, Hq]).

    Raises:
        KernelRefused: shapes or dtypes that differ.
    """
    call = Call("merge_state", _SOURCE)
    call.needs(v_a.shape == v_b.shape, "v_a and v_b must have one shape", _shapes(v_a, v_b))
    for name, lse in (("s_a", s_a), ("s_b", s_b)):
        rule = f"{name} must be [{v_a.shape[0]}, {v_a.shape[1]}]"
        call.needs(lse.shape == v_a.shape[:2], rule, list(lse.shape))
    call.needs_dtype("v_b", v_b, v_a.dtype)
    merged = torch.empty_like(v_a)
    sums = torch.empty(v_a.shape[:2], dtype=torch.float32, device=v_a.device)
    launch(
        _MERGER,
        parts=(v_a, v_b),
        lses=(s_a.to(torch.float32), s_b.to(torch.float32)),
        out=merged,
        lse=sums,
    )
    return merged, sums


def merge_states(v: torch.Tensor, s: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over several sets of keys, from attention over each.

    Args:
        v: [T, sets, Hq, D].
        s: [T, sets, Hq] to base 2; taken as float32.

    Returns:
        ([T, Hq, D], float32 [T, Hq]).

    Raises:
        KernelRefused: shapes that do not fit.
    """
    call = Call("merge_states", _SOURCE)
    call.needs(v.dim() == 4, "v must have 4 dimensions", v.dim())
    call.needs(s.shape == v.shape[:3], f"s must be {list(v.shape[:3])}", list(s.shape))
    merged = torch.empty((v.shape[0], *v.shape[2:]), dtype=v.dtype, device=v.device)
    sums = torch.empty(merged.shape[:2], dtype=torch.float32, device=v.device)
    launch(
        _MERGER,
        parts=v.unbind(1),
        lses=s.to(torch.float32).unbind(1),
        out=merged,
        lse=sums,
    )
    return merged, sums


def _merge_states(
    memory: KernelMemory,
    *,
    parts: tuple[torch.Tensor, ...],
    lses: tuple[torch.Tensor, ...],
    out: torch.Tensor,
    lse: torch.Tensor,
) -> None:
    sums = np.stack([as_numbers(one) for one in lses])
    best = sums.max(0)
    base = np.where(np.isfinite(best), best, 0.0)
    weights = np.exp2(sums - base)
    total = weights.sum(0)
    # A set without keys has weight 0, and what stands in its output counts for nothing.
    values = np.stack([as_numbers(one) for one in parts])
    values = np.where(weights[..., None] == 0.0, 0.0, values)
    merged = (values * weights[..., None]).sum(0) / np.where(total == 0.0, 1.0, total)[..., None]
    tokens = np.arange(len(out))
    memory.store("v_merged", out, torch.from_numpy(merged), tokens)
    with np.errstate(divide="ignore"):
        memory.store("s_merged", lse, torch.from_numpy(base + np.log2(total)), tokens)


def _shapes(*tensors: torch.Tensor) -> str:
    return " and ".join(str(list(tensor.shape)) for tensor in tensors)


_MERGER = ModelKernel("merge_states", _merge_states, _SOURCE)
