"""The source line that is to blame: the innermost frame that is neither torch's nor ours."""

from __future__ import annotations

import importlib.util
import os
import sys
from functools import cache
from types import FrameType

import torch

__all__ = ["innermost_source"]


def _folders(package: str) -> list[str]:
    """Where a package that may be missing is installed, without importing it."""
    spec = importlib.util.find_spec(package)
    return [folder + os.sep for folder in (spec and spec.submodule_search_locations) or ()]


_HERE = os.path.dirname(os.path.abspath(__file__))
_PACKAGE = os.path.dirname(_HERE)
_SKIPPED = (
    _HERE + os.sep,
    os.path.join(_PACKAGE, "graphs") + os.sep,
    os.path.join(_PACKAGE, "execution") + os.sep,
    os.path.dirname(os.path.abspath(torch.__file__)) + os.sep,
    *_folders("triton"),
    os.path.dirname(os.path.abspath(os.__file__)) + os.sep + "contextlib",
    "<",
)


@cache
def _is_skipped(filename: str) -> bool:
    return filename.startswith(_SKIPPED)


def innermost_source(depth: int = 1) -> str:
    """`file.py:123 in function` of the engine code on the stack, '' if there is none."""
    frame: FrameType | None = sys._getframe(depth)
    while frame is not None:
        code = frame.f_code
        if not _is_skipped(code.co_filename):
            return f"{os.path.basename(code.co_filename)}:{frame.f_lineno} in {code.co_name}"
        frame = frame.f_back
    return ""
