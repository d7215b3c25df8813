"""Lets checks of a call read shapes, dtypes and strides at their own price."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

__all__ = ["reads_only"]

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


def reads_only(check: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Run a check past torch's function modes; it makes no tensor, and writes none.

    While an engine runs, each of its modes is called for every attribute of a tensor that is
    looked at, which takes ten times as long as the look.
    """

    @wraps(check)
    def call(*args: Parameters.args, **kwargs: Parameters.kwargs) -> Result:
        with torch._C.DisableTorchFunction():
            return check(*args, **kwargs)

    return call
