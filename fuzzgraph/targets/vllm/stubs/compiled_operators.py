"""What vLLM asks of its compiled operators, where there are none: which kernels they have, none."""

from __future__ import annotations

import functools
from typing import Any

import torch

_SUPPORTED = (
    "cutlass_scaled_mm_supports_fp8",
    "cutlass_scaled_mm_supports_block_fp8",
    "cutlass_scaled_mm_supports_fp4",
    "cutlass_group_gemm_supported",
    "cutlass_sparse_scaled_mm_supported",
)


@functools.cache
def answer_for_compiled_operators() -> Any:
    """Define those operators that modules call when they are imported, and the one that captures
    call; for the life of the process."""
    library = torch.library.Library("_C", "FRAGMENT")
    for name in _SUPPORTED:
        library.define(f"{name}(int capability) -> bool")
        library.impl(name, lambda capability: False, "CompositeExplicitAutograd")
    # A view without a reference on the device: memory of a graph's pool is never given back here.
    library.define("weak_ref_tensor(Tensor(a) input) -> Tensor(a)")
    library.impl("weak_ref_tensor", lambda tensor: tensor.detach(), "CPU")
    # The device's view of pinned memory of the host: here they are one memory.
    library.define("get_cuda_view_from_cpu_tensor(Tensor(a) cpu_tensor) -> Tensor(a)")
    library.impl("get_cuda_view_from_cpu_tensor", lambda tensor: tensor.detach(), "CPU")
    return library
