"""Merge of several partial results, each with the base-2 logarithm of its sum of exponentials.

Source: FlashInfer 0.6.12, flashinfer/cascade.py and include/flashinfer/attention/cascade.cuh.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory, as_numbers

__all__ = ["merge_states"]

_SOURCE = "FlashInfer 0.6.12, flashinfer/cascade.py and cascade.cuh"


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
    values = np.stack([as_numbers(one) for one in parts])
    merged = (values * weights[..., None]).sum(0) / np.where(total == 0.0, 1.0, total)[..., None]
    tokens = np.arange(len(out))
    memory.store("v_merged", out, torch.from_numpy(merged), tokens)
    with np.errstate(divide="ignore"):
        memory.store("s_merged", lse, torch.from_numpy(base + np.log2(total)), tokens)


_MERGER = ModelKernel("merge_states", _merge_states, _SOURCE)
