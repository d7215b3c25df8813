"""Which names of a function may be taken for one another: `bs` and `raw_bs`, not `bs` and `device`.

Names tell their kind by their last word. Whether both really are of one type is not known; a
change that raises is noticed by any target, and counts as such.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator

from fuzzgraph.mutants.source import Source

_COUNTS = frozenset(
    [
        "bs",
        "batch",
        "size",
        "token",
        "tokens",
        "seq",
        "seqs",
        "row",
        "rows",
        "req",
        "reqs",
        "len",
        "num",
        "width",
        "stride",
        "page",
        "pages",
    ]
)
"""Last words of numbers of things: one is easily taken for another."""


def dotted(node: ast.AST) -> str | None:
    """`a.b.c` for a name or a path of attributes; None for anything else."""
    path = []
    while isinstance(node, ast.Attribute):
        path.append(node.attr)
        node = node.value
    if not isinstance(node, ast.Name):
        return None
    return ".".join([node.id, *reversed(path)])


def same_kind(one: str, two: str) -> bool:
    """Whether two names end in the same word, or both count things.

    >>> same_kind("bs", "self.raw_bs"), same_kind("kv_indptr", "qo_indptr"), same_kind("bs", "x")
    (True, True, False)
    """
    first, second = _last_word(one), _last_word(two)
    return first == second or (first in _COUNTS and second in _COUNTS)


def _last_word(name: str) -> str:
    words = name.rpartition(".")[2].strip("_").lower().split("_")
    words = [word for word in words if word not in ("cpu", "gpu", "int", "buf", "buffer")] or words
    last = words[-1]
    return (
        last[:-1] if last.endswith("s") and last not in ("bs", "lens") and len(last) > 3 else last
    )


class Scope:
    """One function: its source, what it reads, and what is bound where."""

    def __init__(self, source: Source, function: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self.source = source
        self.function = function
        self._called: set[int] = set()
        self._bound: dict[str, int] = {}
        """Name -> the first line behind which it has a value; 0 for an argument."""
        self.values = tuple(sorted(set(self._read())))

    def others(self, node: ast.Name | ast.Attribute) -> Iterator[str]:
        """Names of the same kind that the function reads elsewhere and that have a value here.

        Of other objects only their own attributes: what hangs deeper is seldom taken by mistake.
        """
        here = dotted(node)
        if here is None or id(node) in self._called:
            return
        owner = here.rpartition(".")[0]
        for other in self.values:
            if other == here or not same_kind(here, other):
                continue
            place = other.rpartition(".")[0]
            root = other.partition(".")[0]
            if self._bound.get(root, 0) < node.lineno and (place == owner or "." not in place):
                yield other

    def bound_before(self, target: ast.Name) -> bool:
        """Whether the name has a value when this assignment runs, as far as the text tells."""
        return self._bound.get(target.id, target.lineno) < target.lineno

    def _read(self) -> Iterator[str]:
        arguments = self.function.args
        for argument in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs):
            self._bound[argument.arg] = 0
        for node in (found for part in self.function.body for found in ast.walk(part)):
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
                last = getattr(node, "end_lineno", None) or node.lineno
                self._bound[node.id] = min(self._bound.get(node.id, last), last)
            if isinstance(node, ast.Call):
                self._called.add(id(node.func))
            if isinstance(node, ast.Attribute) and id(node) not in self._called:
                self._called.add(id(node.value))  # part of a longer path
        for node in (found for part in self.function.body for found in ast.walk(part)):
            if isinstance(node, ast.Name | ast.Attribute) and id(node) not in self._called:
                name = dotted(node) if isinstance(node.ctx, ast.Load) else None
                if name is not None:
                    yield name
