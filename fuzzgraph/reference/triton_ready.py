"""Loads Triton so that its kernels run here: compiled on a GPU, interpreted where there is none."""

from __future__ import annotations

import os
import sys
from functools import cache
from typing import Any

import torch

from fuzzgraph.errors import AdapterUnavailable

__all__ = ["ready_triton"]


def ready_triton() -> None:
    """Import Triton, with its interpreter if this machine has no GPU.

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
    if without_gpu:
        if isinstance(triton.language.sum, JITFunction):
            _interpret_library()
        _quicken_interpreter()


def _interpret_library() -> None:
    """Hand Triton's own library (sum, max, ...) to the interpreter, like the kernels that call it.

    Triton decides this once, on import; whoever imported it earlier need not have known.
    """
    from triton.runtime import JITFunction
    from triton.runtime.interpreter import InterpretedFunction

    made: dict[int, Any] = {}
    for name in [name for name in sys.modules if name.startswith("triton.language")]:
        module = sys.modules[name]
        for attribute, value in list(vars(module).items()):
            if isinstance(value, JITFunction):
                interpreted = made.setdefault(id(value), InterpretedFunction(value.fn))
                setattr(module, attribute, interpreted)


class _NoScope:
    """Stands for a set of patches that stays on."""

    def restore(self) -> None: ...


@cache
def _quicken_interpreter() -> None:
    """Leave out two things that take 60% of an interpreted launch and change no result.

    The interpreter computes an overflow check at each integer operation, of which nothing comes
    without debug mode, and patches Triton's language anew at each call of a kernel or of its
    library, although the patches are always the same ones. Does nothing where a version of Triton
    has other insides.
    """
    from triton.runtime import interpreter

    try:
        interpreter.interpreter_builder.options = interpreter.InterpreterOptions(
            sanitize_overflow=False
        )
        patch = interpreter._patch_lang
    except (AttributeError, TypeError):
        return
    patched: dict[int, Any] = {}

    def patch_once(kernel: Any) -> _NoScope:
        module = kernel.__globals__
        if id(module) not in patched:
            patch(kernel)
            patched[id(module)] = module  # kept, so that no other module gets its id
        return _NoScope()

    interpreter._patch_lang = patch_once
