"""Imports Triton so that its kernels run here: compiled on a GPU, interpreted without one."""

from __future__ import annotations

import os
import sys
from typing import Any

import torch

from fuzzgraph.errors import AdapterUnavailable


def ready_triton() -> None:
    """Import Triton; without a GPU, turn its interpreter on.

    Raises:
        AdapterUnavailable: Triton is not installed.
    """
    without_gpu = not torch.cuda.is_available()
    if without_gpu:
        os.environ.setdefault("TRITON_INTERPRET", "1")
    try:
        import triton.language
        from triton.runtime import JITFunction
    except ImportError as error:
        raise AdapterUnavailable(
            f"Triton kernels need triton, which cannot be imported here ({error}). Install it with "
            "pip install 'fuzzgraph[triton]', or use kernels='torch'."
        ) from None
    if without_gpu and isinstance(triton.language.sum, JITFunction):
        _interpret_library()


def _interpret_library() -> None:
    """Make Triton's own library (sum, max, ...) interpreted, like the kernels that call it."""
    # Triton decides on import whether its functions are compiled. If other code imported it before
    # TRITON_INTERPRET was set, its library cannot be called from interpreted kernels.
    from triton.runtime import JITFunction
    from triton.runtime.interpreter import InterpretedFunction

    made: dict[int, Any] = {}

    def interpreted(function: Any) -> Any:
        return made.setdefault(id(function), InterpretedFunction(function.fn))

    for name in [name for name in sys.modules if name.startswith("triton.language")]:
        module = sys.modules[name]
        for attribute, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                setattr(module, attribute, interpreted(value))
    tensor = sys.modules["triton.language"].tensor
    for attribute, value in list(vars(tensor).items()):
        if isinstance(value, JITFunction):
            setattr(tensor, attribute, _member(interpreted(value)))


def _member(function: Any) -> Any:
    """A method that hands its tensor on, which an interpreted function by itself does not."""

    def call(*args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    return call
