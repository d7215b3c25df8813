"""Products of grouped rows: each group's first rows with a matrix of its own.

Source: DeepGEMM 0274ad7, csrc/apis/gemm.hpp (m_grouped_bf16_gemm_nt_masked) and README.md,
"Grouped GEMMs (masked layout)".
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.kernel_models.arguments import Tensor1, Tensor3
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.kernel_models.launch import ModelKernel, launch
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["m_grouped_bf16_gemm_nt_masked"]

_SOURCE = "DeepGEMM 0274ad7, csrc/apis/gemm.hpp"


def m_grouped_bf16_gemm_nt_masked(
    a: Tensor3,
    b: Tensor3,
    d: Tensor3,
    masked_m: Tensor1,
    expected_m: int,
) -> None:
    """`a @ b.T` of each group's first rows; rows behind them are neither read nor written.

    Args:
        a: bfloat16 [groups, most rows, k]; b: bfloat16 [groups, n, k]; both contiguous.
        d: bfloat16 [groups, most rows, n], contiguous.
        masked_m: int32 [groups], how many rows each has.
        expected_m: about as many, for the choice of a kernel.

    Raises:
        KernelRefused: the real host code refuses such a call.
    """
    call = Call("m_grouped_bf16_gemm_nt_masked", _SOURCE)
    groups, most, columns = a.shape
    call.needs_shape("b", b, groups, None, columns)
    call.needs_shape("d", d, groups, most, b.shape[1])
    call.needs_shape("masked_m", masked_m, groups)
    for name, tensor in (("a", a), ("b", b), ("d", d)):
        call.needs_dtype(name, tensor, torch.bfloat16)
        call.needs_contiguous(name, tensor)
    call.needs_dtype("masked_m", masked_m, torch.int32)
    call.needs_contiguous("masked_m", masked_m)
    call.needs(expected_m > 0, "expected_m must be positive", expected_m)
    launch(_MASKED, a=a, b=b, d=d, masked_m=masked_m)


def _run_grouped_masked(
    memory: KernelMemory,
    *,
    a: torch.Tensor,
    b: torch.Tensor,
    d: torch.Tensor,
    masked_m: torch.Tensor,
) -> None:
    most = a.shape[1]
    for group, rows in enumerate(memory.ints(masked_m).tolist()):
        if not 0 <= rows <= most:
            rule = f"masked_m must lie in 0..{most}"
            memory.misused("masked_m", rule, f"{rows} of group {group}")
        count = np.arange(max(0, rows))
        at, only = (np.full_like(count, group), count), np.array([group])
        with np.errstate(over="ignore", invalid="ignore"):
            product = memory.numbers("a", a, *at) @ memory.numbers("b", b, only)[0].T
        memory.store("d", d, product, *at)


_MASKED = ModelKernel("m_grouped_bf16_gemm_nt_masked", _run_grouped_masked, _SOURCE)
