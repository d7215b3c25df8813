"""Lets an engine's custom operators run where there is no GPU.

Engines register Python functions as operators of torch, for its compiler's sake, and name the
dispatch key of CUDA alone. On a machine without a GPU the same function answers for the CPU.
"""

from __future__ import annotations

import functools
from typing import Any

import torch

__all__ = ["operators_on_cpu"]


@functools.cache
def operators_on_cpu(namespace: str) -> None:
    """From now on, what a library registers for CUDA in `torch.ops.<namespace>` runs on the CPU.

    For the life of the process. Nothing changes where there is a GPU.
    """
    if torch.cuda.is_available():
        return
    registered: Any = torch.library.Library.impl

    @functools.wraps(registered)
    def impl(library: Any, name: Any, function: Any, dispatch_key: str = "", **more: Any) -> Any:
        if library.ns == namespace and dispatch_key == "CUDA":
            dispatch_key = "CPU"
        return registered(library, name, function, dispatch_key, **more)

    torch.library.Library.impl = impl  # type: ignore[assignment, method-assign]
