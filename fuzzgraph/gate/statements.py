"""Which statements changed lines belong to."""

from __future__ import annotations

import ast
from collections.abc import Collection, Iterator

_BLOCKS = ("body", "orelse", "finalbody", "handlers", "cases")


def statements_at(tree: ast.Module, lines: Collection[int]) -> frozenset[int]:
    """First lines of the innermost statements that these lines are part of.

    A line of a compound statement's header counts for the whole statement, the header of an
    `except` or a `case` for the first statement behind it. Comments, blank lines, docstrings and a
    bare `else:` are part of no statement.
    """
    spans = sorted(_spans(tree), key=lambda span: (span[0], -span[1]))
    found = set()
    for line in lines:
        around = [first for start, end, first in spans if start <= line <= end]
        if around:
            found.add(around[-1])
    return frozenset(found)


def _spans(node: ast.AST) -> Iterator[tuple[int, int, int]]:
    """First and last line of what a statement says itself, and the line that stands for it."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.stmt):
            if not _says_nothing(child):
                start, end = _own_lines(child)
                yield start, end, child.lineno
        elif isinstance(child, (ast.ExceptHandler, ast.match_case)):
            start, end = _own_lines(child)
            yield start, end, child.body[0].lineno
        else:
            continue  # an expression holds no statement
        yield from _spans(child)


def _says_nothing(statement: ast.stmt) -> bool:
    """A docstring or another lone constant, or what only the compiler reads."""
    if isinstance(statement, ast.Expr):
        return isinstance(statement.value, ast.Constant)
    return isinstance(statement, ast.ImportFrom) and statement.module == "__future__"


def _own_lines(node: ast.stmt | ast.ExceptHandler | ast.match_case) -> tuple[int, int]:
    """Without the blocks below it."""
    blocks = [name for name in _BLOCKS if isinstance(getattr(node, name, None), list)]
    own = [
        part
        for name, value in ast.iter_fields(node)
        if name not in blocks
        for part in (value if isinstance(value, list) else [value])
        if isinstance(part, ast.AST)
    ]
    places = [
        (one.lineno, getattr(one, "end_lineno", None) or one.lineno)
        for part in own
        for one in ast.walk(part)
        if hasattr(one, "lineno")
    ]
    line = getattr(node, "lineno", None)
    if line is not None:
        last = line if blocks else getattr(node, "end_lineno", None) or line
        places.append((line, last))
    return min(first for first, _ in places), max(last for _, last in places)
