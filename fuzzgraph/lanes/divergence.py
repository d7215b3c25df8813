"""Control flow inside the lanes: what ends or splits a vectorised run.

They derive from BaseException, so that neither a kernel's `except Exception` nor the interpreter's
own wrapping of errors can swallow one.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

__all__ = ["Divergence", "TooWide", "Unlearned", "Unsupported", "uniform"]

Array = npt.NDArray[Any]


class Divergence(BaseException):
    """Lanes disagree on a value that Python is about to see.

    Args:
        keys: [lanes], equal where lanes may go on together.
    """

    def __init__(self, keys: Array) -> None:
        super().__init__(f"{len(keys)} lanes disagree")
        self.keys = keys


class Unsupported(BaseException):
    """The lanes cannot do this soundly: the stock interpreter has to run the launch."""


class TooWide(BaseException):
    """An intermediate would exceed the memory bound: fewer lanes at a time."""


class Unlearned(BaseException):
    """A buffer is written whose loads were not kept: run the launch again and keep them."""


def uniform(values: Array) -> Any:
    """The value that all lanes have.

    Raises:
        Divergence: they have several; by bits for floating point, so that NaN equals itself.
    """
    first = values[0]
    if len(values) > 1:
        if values.dtype.kind == "f":
            bits = values.view(f"u{values.dtype.itemsize}")
            if (bits != bits[0]).any():
                raise Divergence(bits)
        elif (values != first).any():
            raise Divergence(values)
    return first
