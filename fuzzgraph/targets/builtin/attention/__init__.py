"""Paged attention kernels of the built-in engine, as torch operations and in Triton."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch

from fuzzgraph.targets.builtin.attention.batch import AttentionBatch, SplitPlan
from fuzzgraph.targets.builtin.attention.torch_kernel import paged_attention

__all__ = [
    "AttentionBatch",
    "Kernel",
    "SplitPlan",
    "kernel",
    "paged_attention",
    "triton_paged_attention",
]

Kernel = Callable[
    [torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, AttentionBatch],
    None,
]
"""(q, k, v, out, batch) -> None; see `torch_kernel.paged_attention`."""


def triton_paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    batch: AttentionBatch,
) -> None:
    """The Triton kernel behind the signature of `paged_attention`; loads Triton when first used.

    Raises:
        AdapterUnavailable: Triton is not installed.
    """
    from fuzzgraph.targets.builtin.attention import triton_kernel

    triton_kernel.paged_attention(q, k, v, out, batch)


def kernel(name: Literal["torch", "triton"]) -> Kernel:
    """The kernel called `name`."""
    return triton_paged_attention if name == "triton" else paged_attention
