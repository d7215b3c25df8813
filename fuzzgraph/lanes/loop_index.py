"""Loop variables that a kernel treats as the tensors which the compiler makes of them.

The interpreter gives a kernel plain integers, and `index.to(tl.int64)` fails. A loop whose variable
is asked for that gets integers that have it; all other loops keep plain ones.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Iterable, Iterator
from functools import lru_cache
from types import CodeType, FrameType
from typing import Any


class Index(int):
    """An integer with the cast that Triton's tensors have."""

    def to(self, *args: Any, **kwargs: Any) -> Any:
        """A tensor of another type."""
        return tensor_of_number(int(self)).to(*args, **kwargs)


def tensor_of_number(number: Any) -> Any:
    """What the compiler has for a loop variable."""
    from triton.runtime import interpreter

    return interpreter.interpreter_semantic.to_tensor(number)


def with_casts(numbers: Iterable[Any], frame: FrameType) -> Iterable[Any]:
    """The numbers of a loop, castable where the kernel's frame asks for that."""
    if frame.f_lineno not in _casting_lines(frame.f_code):
        return numbers
    # Lanes that differ in the number have one that can be cast; those that agree have plain ones.
    return (Index(number) if type(number) is int else number for number in numbers)


@lru_cache(maxsize=1024)
def _casting_lines(code: CodeType) -> frozenset[int]:
    """Lines on which loops evaluate their range whose variable is cast."""
    tree, first = function_of(code)
    loops = [node for node in ast.walk(tree) if isinstance(node, ast.For)] if tree else []
    return frozenset(
        line
        for loop in loops
        if isinstance(loop.target, ast.Name) and loop.target.id in _cast_names(loop)
        for line in range(first + loop.iter.lineno - 1, first + (loop.iter.end_lineno or 0))
    )


def _cast_names(loop: ast.For) -> Iterator[str]:
    for node in ast.walk(loop):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr="to"):
                yield name


def function_of(code: CodeType) -> tuple[ast.FunctionDef | None, int]:
    """The syntax of a kernel, and the line on which its source begins; None without its source."""
    try:
        lines, first = inspect.getsourcelines(code)
        tree = ast.parse(textwrap.dedent("".join(lines)))
    except (OSError, TypeError, SyntaxError):
        return None, 0
    function = tree.body[0]
    return (function if isinstance(function, ast.FunctionDef) else None), first
