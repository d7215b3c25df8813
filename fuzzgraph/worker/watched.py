"""Notes which of the watched statements of an engine are executed, at the cost of one call each.

Tracing every line would make a case several times as slow. Here the compiler gets a file with a
call before each watched statement, and nothing else of it is different: lines, names and texts,
which Triton and tracebacks read from the file, stay as they are.
"""

from __future__ import annotations

import ast
import builtins
from collections.abc import Callable, Mapping
from types import CodeType
from typing import Any

Statements = Mapping[str, tuple[int, ...]]
"""File -> first lines of statements."""

_NAME = "__fuzzgraph_reached__"


class Watched:
    """The watched statements of this process.

    Args:
        statements: absolute path of a source -> first lines of its watched statements.
    """

    def __init__(self, statements: Statements) -> None:
        self._statements = statements
        self._reached: set[tuple[str, int]] = set()
        self._told: set[tuple[str, int]] = set()

    def __contains__(self, path: str) -> bool:
        return path in self._statements

    def compiled(self, source: bytes, path: str) -> CodeType:
        """The code of a watched file.

        Raises:
            SyntaxError: as the compiler has it.
        """
        tree = _Calls(path, self._statements[path]).visit(ast.parse(source, path))
        setattr(builtins, _NAME, _noting(self._reached))
        code: CodeType = compile(tree, path, "exec", dont_inherit=True)
        return code

    def fresh(self) -> dict[str, tuple[int, ...]]:
        """What was reached since this was asked last."""
        new = self._reached - self._told
        self._told |= new
        return {path: tuple(sorted(line for file, line in new if file == path))
                for path in sorted({file for file, _ in new})}  # fmt: skip


def _noting(reached: set[tuple[str, int]]) -> Callable[[str, int], None]:
    add = reached.add
    return lambda path, line: add((path, line))


class _Calls(ast.NodeTransformer):
    """Puts a call before each of the statements."""

    def __init__(self, path: str, lines: tuple[int, ...]) -> None:
        self._path = path
        self._lines = frozenset(lines)

    def visit(self, node: ast.AST) -> Any:
        """The node, behind its call where it is watched."""
        self.generic_visit(node)
        if not isinstance(node, ast.stmt) or node.lineno not in self._lines:
            return node
        arguments: list[ast.expr] = [ast.Constant(self._path), ast.Constant(node.lineno)]
        call = ast.Expr(ast.Call(ast.Name(_NAME, ast.Load()), arguments, []))
        return [ast.fix_missing_locations(ast.copy_location(call, node)), node]
