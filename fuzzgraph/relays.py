"""Marks functions that only pass an engine's call on, so that errors of the call are not theirs.

Guarded memory and the recorder stand between an engine and torch or Triton. An error that torch
raises has no Python frame of its own, so the innermost frame is that of the function which passed
the call on.
"""

from __future__ import annotations

from collections.abc import Callable
from types import CodeType
from typing import Any, TypeVar

_RELAYS: set[CodeType] = set()
_HOOKS = ("__torch_function__", "__torch_dispatch__")

F = TypeVar("F", bound=Callable[..., Any])


def relay(function: F) -> F:
    """Mark a function that calls what the engine called; it runs as fast as before.

    An error in its own lines counts as the engine's: keep such a function short.
    """
    _RELAYS.add(function.__code__)
    return function


def is_relay(code: CodeType) -> bool:
    """Whether the code is that of a marked function, or of a hook through which torch calls."""
    return code in _RELAYS or code.co_name in _HOOKS
