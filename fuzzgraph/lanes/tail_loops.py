"""Loops that a kernel ends with: lanes with fewer rounds may sleep through the rest of them.

Lanes that run different numbers of rounds have to be split, because what they assigned in their
last round is used later. Behind a loop that is the last statement of its kernel nothing is used
any more: there a lane that is done just stops touching memory.
"""

from __future__ import annotations

import ast
import inspect
import textwrap
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

__all__ = ["is_tail"]


@lru_cache(maxsize=1024)
def _tail_lines(code: CodeType) -> range:
    """Lines on which the last loop of a kernel asks for its range; empty without such a loop."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return range(0)
    function = tree.body[0]
    if not isinstance(function, ast.FunctionDef):
        return range(0)
    last = function.body[-1]
    if not isinstance(last, ast.For) or last.orelse or not isinstance(last.target, ast.Name):
        return range(0)
    end = last.iter.end_lineno or last.iter.lineno
    return range(first + last.iter.lineno - 1, first + end)


def is_tail(frame: FrameType, kernel: Any) -> bool:
    """Whether a frame of the kernel itself is at its last loop."""
    return frame.f_code is kernel.__code__ and frame.f_lineno in _tail_lines(frame.f_code)
