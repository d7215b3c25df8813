"""Finds the line of a kernel that is running, or that raised."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from functools import cache
from traceback import walk_tb
from typing import Any

_HERE = os.path.dirname(os.path.abspath(__file__)) + os.sep


@cache
def _is_machinery(filename: str) -> bool:
    """Whether a file is FuzzGraph's or Triton's, so that the kernel is one of its callers."""
    return filename.startswith(_HERE) or filename.startswith(_triton())


@cache
def _triton() -> str:
    found = sys.modules["triton"].__file__
    assert found is not None
    return os.path.dirname(os.path.abspath(found)) + os.sep


# The line that a played back operation stands at.
_PLAYED: list[str] = []


def at_line(function: Callable[..., Any], line: str) -> Callable[..., Any]:
    """The function, during which `kernel_line` is `line`."""

    def call(*args: Any) -> Any:
        _PLAYED.append(line)
        try:
            return function(*args)
        finally:
            _PLAYED.pop()

    call.__dict__["playing_at"] = _PlayingAt(line)
    return call


class _PlayingAt:
    """Inside, `kernel_line` is this line."""

    __slots__ = ("_line",)

    def __init__(self, line: str) -> None:
        self._line = line

    def __enter__(self) -> None:
        _PLAYED.append(self._line)

    def __exit__(self, *_: object) -> None:
        _PLAYED.pop()


def playing_at(call: Any) -> AbstractContextManager[None]:
    """What `at_line` wraps around a call that it made."""
    found: AbstractContextManager[None] = call.playing_at
    return found


def kernel_line() -> str:
    """`file.py:123` of the innermost frame that is neither ours nor Triton's."""
    if _PLAYED:
        return _PLAYED[-1]
    frame = sys._getframe(1)
    while _is_machinery(frame.f_code.co_filename):
        if frame.f_back is None:
            return "?"
        frame = frame.f_back
    return _place(frame.f_code.co_filename, frame.f_lineno)


def error_line(error: BaseException) -> str:
    """`file.py:123` of the innermost frame of an exception that is neither ours nor Triton's."""
    while error.__cause__ is not None:
        error = error.__cause__
    found = [(frame.f_code.co_filename, line) for frame, line in walk_tb(error.__traceback__)]
    kernels = [place for place in found if not _is_machinery(place[0])]
    return _place(*kernels[-1]) if kernels else "?"


def _place(filename: str, line: int) -> str:
    return f"{os.path.basename(filename)}:{line}"
