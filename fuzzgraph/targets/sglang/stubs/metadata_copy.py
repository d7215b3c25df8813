"""Models of what sglang compiles to copy metadata of a draft's steps (`fused_metadata_copy`)."""

from __future__ import annotations

from typing import Any

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models import metadata_copy
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models

__all__ = ["compile_metadata_copy"]

_PLACES = (
    "sglang.kernels.ops.attention.dsa.fused_metadata_copy",
    "sglang.kernels.ops.attention.fused_metadata_copy",
    "sglang.jit_kernel.fused_metadata_copy",
)
"""Modules that compile it, the newest first."""
_TENSORS, _TENSORS_OF_THREE = 9, 8
"""Of a source, and of each place that it is copied to."""
_MODES = range(3)
"""Of a forward: a decode, a verify and an extend of drafts."""


def _once(compiled: Compiled) -> Any:
    mode = compiled.number("FORWARD_MODE")
    if mode not in _MODES:
        raise KernelRefused(f"FORWARD_MODE must be one of {list(_MODES)}; got {mode} (its source)")
    pages = bool(compiled.number("HAS_REAL_PAGE_TABLE"))
    planned = bool(compiled.number("HAS_FLASHMLA"))

    def copy(*args: Any) -> None:
        sources, copies = args[:_TENSORS], args[_TENSORS : 2 * _TENSORS]
        sizes = args[2 * _TENSORS :]
        metadata_copy.copy_metadata(
            sources, copies, *sizes, mode=mode, has_pages=pages, has_plan=planned
        )

    return copy


def _thrice(compiled: Compiled) -> Any:
    planned = bool(compiled.number("HAS_FLASHMLA"))

    def copy(*args: Any) -> None:
        each = _TENSORS_OF_THREE
        sources, *copies = (args[first * each : (first + 1) * each] for first in range(4))
        bs, max_len, _ = args[4 * each :]
        metadata_copy.copy_metadata_thrice(sources, copies, bs, max_len, has_plan=planned)

    return copy


_COPIES: Makers = {
    "FusedMetadataCopyKernel::run": _once,
    "FusedMetadataCopyMultiKernel::run": _thrice,
}


def compile_metadata_copy() -> None:
    """Have the engine compile the copies to models, for the life of the process."""
    for name in filter(has_module, _PLACES):
        compile_to_models(engine_module(name), _COPIES)
        return
