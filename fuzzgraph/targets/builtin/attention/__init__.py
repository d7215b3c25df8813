"""Paged attention kernels of the built-in engine, as torch operations and in Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from fuzzgraph.targets.builtin.attention.batch import AttentionBatch, SplitPlan

__all__ = ["AttentionBatch", "Kernel", "SplitPlan", "kernel"]

Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, AttentionBatch],
    None,
]
"""(q, k, v, out, batch) -> None; see `torch_kernel.paged_attention`."""


def kernel(name: Literal["torch", "triton"]) -> Kernel:
    """The kernel called `name`; Triton is imported only when it is asked for.

    Raises:
        AdapterUnavailable: Triton is not installed.
    """
    if name == "triton":
        from fuzzgraph.targets.builtin.attention.triton_kernel import paged_attention

        return paged_attention
    from fuzzgraph.targets.builtin.attention import torch_kernel

    return torch_kernel.paged_attention
