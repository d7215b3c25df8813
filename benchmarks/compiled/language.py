"""Triton's language as it was when this module was imported, and put back so.

The interpreter puts functions of its own into the language, and leaves some there when a kernel
that it runs calls another one (Triton 3.7.1 interpreter.py, `InterpretedFunction.__call__`).
"""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import triton.language  # noqa: F401  what is remembered


def _holders() -> dict[str, Any]:
    """Every module of the language, and every class that one of them defines."""
    modules = {
        name: sys.modules[name] for name in sys.modules if name.startswith("triton.language")
    }
    found: dict[str, Any] = dict(modules)
    for name, module in modules.items():
        for value in vars(module).values():
            if isinstance(value, type) and value.__module__ == name:
                found[f"{name}:{value.__qualname__}"] = value
    return found


_KEPT = {holder: dict(vars(holder)) for holder in _holders().values()}


def put_back() -> None:
    """Everything in the language as it was."""
    for holder, kept in _KEPT.items():
        for name in [name for name in vars(holder) if name not in kept]:
            with contextlib.suppress(AttributeError, TypeError):
                delattr(holder, name)
        for name, value in kept.items():
            if vars(holder).get(name) is not value:
                with contextlib.suppress(AttributeError, TypeError):
                    setattr(holder, name, value)
