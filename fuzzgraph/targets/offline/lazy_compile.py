"""Hands what the engine decorates for torch's compiler to it at the first call.

The engine decorates functions of its samplers and experts when it is imported, and the decorators
import the compiler: seconds of every worker's start, for functions that metadata code never calls.
One that is called is compiled as it would have been.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from types import FunctionType
from typing import Any

import torch

__all__ = ["compile_at_first_call"]


@functools.cache
def compile_at_first_call() -> None:
    """From now on `torch.compile` and `torch.compiler.disable` wait; once per process.

    For the life of the process, since the engine imports some of its modules while it captures.
    """
    for owner, name in ((torch, "compile"), (torch.compiler, "disable")):
        setattr(owner, name, _waiting(getattr(owner, name)))


def _waiting(decorate: Callable[..., Any]) -> Callable[..., Any]:
    """The same decorator, with or without options, applied when its function is first called."""

    @functools.wraps(decorate)
    def waiting(function: Any = None, *args: Any, **options: Any) -> Any:
        if function is None:
            return lambda function: waiting(function, *args, **options)
        if not isinstance(function, FunctionType):  # modules and methods are used, not imported
            return decorate(function, *args, **options)
        return _at_first_call(lambda: decorate(function, *args, **options), function)

    return waiting


def _at_first_call(make: Callable[[], Any], function: FunctionType) -> Callable[..., Any]:
    made: list[Any] = []

    @functools.wraps(function)
    def call(*args: Any, **kwargs: Any) -> Any:
        if not made:
            made.append(make())
        return made[0](*args, **kwargs)

    return call
