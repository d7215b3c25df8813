"""Merges of partial attention: two results over disjoint keys become the result over all of them.

Source: sgl-kernel 0.3, csrc/attention/merge_attn_states.cu and cascade.cu, and FlashInfer 0.6.18,
csrc/cascade.cu; the formula is section 2.2 of arXiv 2501.01005.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor2, Tensor3
from fuzzgraph.kernel_models.attention import Floats
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory, as_numbers

__all__ = ["merge_state", "merge_state_v2"]

_SOURCE = "sgl-kernel 0.3, csrc/attention/merge_attn_states.cu"
_FLASHINFER = "FlashInfer 0.6.18, flashinfer/cascade.py and csrc/cascade.cu"
_DTYPES = (torch.float16, torch.bfloat16, torch.float32)

Merged = tuple[torch.Tensor, torch.Tensor]


def merge_state_v2(
    v_a: Tensor3,
    s_a: Tensor2,
    v_b: Tensor3,
    s_b: Tensor2,
    v_merged: torch.Tensor | None = None,
    s_merged: torch.Tensor | None = None,
) -> Merged:
    """What two partial results make together; their sums are natural logarithms.

    Args:
        v_a, v_b: [T, H, Dv] partial results, contiguous.
        s_a, s_b: float32 [T, H] logarithms of their sums of exponentials, contiguous.

    Returns:
        ([T, H, Dv] merged, [T, H] its logarithms). Where neither part has keys, both are NaN.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    return _merge_call(
        Call("merge_state_v2", _SOURCE), _NATURAL, v_a, s_a, v_b, s_b, v_merged, s_merged
    )


def merge_state(v_a: Tensor3, s_a: Tensor2, v_b: Tensor3, s_b: Tensor2) -> Merged:
    """The same as FlashInfer has it: logarithms to base 2, and zeros where no part has keys."""
    return _merge_call(Call("merge_state", _FLASHINFER), _BASE_2, v_a, s_a, v_b, s_b, None, None)


def _merge_call(
    call: Call,
    kernel: ModelKernel,
    v_a: torch.Tensor,
    s_a: torch.Tensor,
    v_b: torch.Tensor,
    s_b: torch.Tensor,
    v_merged: torch.Tensor | None,
    s_merged: torch.Tensor | None,
) -> Merged:
    # The callers' wrappers turn logarithms into float32 before the host code sees them.
    s_a, s_b = s_a.to(torch.float32), s_b.to(torch.float32)
    call.needs_dtype("v_a", v_a, *_DTYPES)
    call.needs_dtype("v_b", v_b, v_a.dtype)
    given = (("v_a", v_a), ("s_a", s_a), ("v_b", v_b), ("s_b", s_b))
    for name, tensor in given:
        call.needs_contiguous(name, tensor)
    call.needs(v_a.ndim == 3, "v_a must have 3 dimensions", v_a.ndim)
    call.needs(v_a.shape == v_b.shape, "v_a and v_b must have one shape", (v_a.shape, v_b.shape))
    for name, tensor in (("s_a", s_a), ("s_b", s_b)):
        wanted, got = list(v_a.shape[:2]), list(tensor.shape)
        call.needs(got == wanted, f"{name} must have shape {wanted}", got)
    out = torch.empty_like(v_a) if v_merged is None else v_merged
    sums = torch.empty_like(s_a) if s_merged is None else s_merged
    launch(kernel, v_a=v_a, s_a=s_a, v_b=v_b, s_b=s_b, out=out, sums=sums)
    return out, sums


def _merge_state_v2(memory: KernelMemory, **given: torch.Tensor) -> None:
    _merge_parts(given, np.exp, np.log, empty=np.nan)


def _merge_state_base_2(memory: KernelMemory, **given: torch.Tensor) -> None:
    _merge_parts(given, np.exp2, np.log2, empty=0.0)


def _merge_parts(
    given: dict[str, torch.Tensor], exp: np.ufunc, log: np.ufunc, *, empty: float
) -> None:
    sums = [as_numbers(given[name]) for name in ("s_a", "s_b")]
    # merge_attn_states.cu: an infinity of either sign is a part without keys
    sums = [np.where(np.isinf(each), -np.inf, each) for each in sums]
    best = np.maximum(*sums)
    base = np.where(np.isfinite(best), best, 0.0)
    weights = [exp(each - base) for each in sums]
    total = weights[0] + weights[1]
    merged: Floats = np.zeros(given["v_a"].shape)
    for weight, name in zip(weights, ("v_a", "v_b"), strict=True):
        merged = merged + as_numbers(given[name]) * weight[..., None]
    with np.errstate(divide="ignore", invalid="ignore"):
        merged = np.where(total[..., None] == 0.0, empty, merged / total[..., None])
        together = np.where((total == 0.0) & np.isnan(empty), np.nan, base + log(total))
    given["out"].copy_(torch.from_numpy(merged))
    given["sums"].copy_(torch.from_numpy(together))


_NATURAL = ModelKernel("merge_state_v2", _merge_state_v2, _SOURCE)
_BASE_2 = ModelKernel("merge_state", _merge_state_base_2, _FLASHINFER)
