"""Finds loops that end a kernel: lanes with fewer rounds need not be split there.

Lanes that run different numbers of rounds usually have to be split, because variables keep the
values of their last round. After a loop that is the last statement of its kernel no variable is
used any more: a lane that is done only stops accessing memory.
"""

from __future__ import annotations

import ast
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any

from fuzzgraph.lanes.loop_index import function_of


@lru_cache(maxsize=1024)
def _tail_lines(code: CodeType) -> range:
    """Lines on which a kernel's last loop evaluates its range; empty without such a loop."""
    # Code objects do not tell. A kernel without source text counts as one without such a loop.
    function, first = function_of(code)
    if function is None:
        return range(0)
    last = function.body[-1]
    # An `else` would run after the loop.
    if not isinstance(last, ast.For) or last.orelse or not isinstance(last.target, ast.Name):
        return range(0)
    # Line numbers of the tree begin with 1 where the source begins with `first`.
    end = last.iter.end_lineno or last.iter.lineno
    return range(first + last.iter.lineno - 1, first + end)


def is_tail(frame: FrameType, kernel: Any) -> bool:
    """Whether a frame of the kernel itself is at its last loop."""
    return frame.f_code is kernel.__code__ and frame.f_lineno in _tail_lines(frame.f_code)
