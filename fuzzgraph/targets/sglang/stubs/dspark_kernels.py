"""DSpark's own kernels run in Triton, as on a GPU, where the engine would take torch on a CPU."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.sglang.release import engine_module, has_module

_FOLDERS = (
    "sglang.kernels.ops.speculative.dspark",
    "sglang.srt.speculative.dspark_components.kernels",
)
"""Where they lie, by release."""
_DISPATCHED = (
    "dspark_accept", "dspark_verify_window", "dspark_draft_model", "dspark_schedule",
    "markov_sample",
)  # fmt: skip
_SLOTS = "sglang.kernels.ops.speculative.cache_locs"
_ASK_THEMSELVES = ("SampleStepTokens", "PaddedToBucket", "BuildQoIndptr")
"""Classes of kernels that look at their tensors by themselves, the first one up to 0.5.21."""
_ROWS = "sglang.kernels.ops.speculative.ragged_verify_kernels"


def run_dspark_kernels() -> None:
    """Have the modules of this process take what a server with CUDA takes."""
    if torch.cuda.is_available():
        return
    slots: Any = engine_module(_SLOTS)
    slots._is_cuda = True
    folder = next(filter(has_module, _FOLDERS))
    names = (f"{folder}.{name}" for name in _DISPATCHED)
    for module in map(engine_module, filter(has_module, (*names, _ROWS))):
        if hasattr(module, "inputs_on_cuda"):
            module.inputs_on_cuda = _on_cuda
        for kernel in (getattr(module, name, None) for name in _ASK_THEMSELVES):
            if kernel is not None:
                kernel.execute = tensors_claim_cuda(kernel.execute)


def _on_cuda(*_: Any, **__: Any) -> bool:
    return True
