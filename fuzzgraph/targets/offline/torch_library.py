"""Lets the engine's custom operators run where there is no GPU.

The engine registers Python functions as operators of torch, for its compiler's sake, and names the
dispatch key of CUDA alone. On a machine without a GPU the same function answers for the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["answer_on_cpu"]

_NAMESPACE = "sglang"


@functools.cache
def answer_on_cpu() -> None:
    """From now on; once per process."""
    if torch.cuda.is_available():
        return
    own: Any = torch.library.Library.impl

    @functools.wraps(own)
    def impl(library: Any, name: Any, function: Any, dispatch_key: str = "", **more: Any) -> Any:
        if library.ns == _NAMESPACE and dispatch_key == "CUDA":
            dispatch_key = "CPU"
        return own(library, name, function, dispatch_key, **more)

    torch.library.Library.impl = impl  # type: ignore[assignment, method-assign]
