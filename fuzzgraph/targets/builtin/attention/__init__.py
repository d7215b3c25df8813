"""Paged attention kernels of the built-in engine, as torch operations and in Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from fuzzgraph.reference.triton_ready import ready_triton
from fuzzgraph.targets.builtin.attention.batch import AttentionBatch, SplitPlan
from fuzzgraph.targets.builtin.attention.torch_kernel import paged_attention

__all__ = [
    "AttentionBatch",
    "Kernel",
    "SplitPlan",
    "kernel",
    "paged_attention",
]

Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, AttentionBatch],
    None,
]
"""(q, k, v, out, batch) -> None; see `torch_kernel.paged_attention`."""


def kernel(name: Literal["torch", "triton"]) -> Kernel:
    """The kernel called `name`; Triton is imported when it is asked for, and not before.

    Raises:
        AdapterUnavailable: Triton is not usable here.
    """
    if name == "torch":
        return paged_attention
    ready_triton()
    from fuzzgraph.targets.builtin.attention import triton_kernel

    return triton_kernel.paged_attention
