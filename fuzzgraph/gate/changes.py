"""What a change touches: files of the engine's package, and in them functions."""

from __future__ import annotations

import ast
import difflib
import re
from dataclasses import dataclass, field
from pathlib import Path

from fuzzgraph.checkout import Checkout, GitFailed, git
from fuzzgraph.errors import UsageError

MODULE = ""
"""In the place of a function's name: lines that run at import, outside all functions."""
_HUNK = re.compile(r"^@@ -(\d+)(?:,(\d+))? \+(\d+)(?:,(\d+))? @@", re.MULTILINE)
_KERNEL_DECORATORS = ("jit", "autotune", "heuristics")
"""Of functions that Triton compiles: Python never calls them."""


@dataclass(frozen=True, slots=True)
class TouchedFile:
    """One Python file of the package that runs differently."""

    path: str
    """Below the package's folder."""
    functions: frozenset[str] = frozenset()
    """Dotted names of functions that the change touches, `MODULE` for lines outside them."""
    kernels: bool = False
    """Whether a Triton kernel is touched."""
    lines: int = 0
    """Changed lines, of both trees."""


@dataclass(frozen=True, slots=True)
class Changes:
    """All that differs between a base and a tree in the engine's package."""

    files: tuple[TouchedFile, ...] = ()
    same: tuple[str, ...] = ()
    """Python files whose text differs and whose code does not: comments, blank lines."""
    other: tuple[str, ...] = ()
    """Files that are no Python: compiled sources, tables. No target runs them."""


def read_changes(checkout: Checkout, base: Path, head: Path, commit: str) -> Changes:
    """The changes of a working tree since a commit, new files included.

    Args:
        checkout: of the package's folder.
        base: the folder as the commit has it. head: the folder in the working tree.

    Raises:
        UsageError: git cannot compare them.
    """
    try:
        listed = git(head, "diff", "--name-only", "-z", "--no-renames", "--relative", commit,
                     "--", ".")  # fmt: skip
        new = git(head, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    except GitFailed as error:
        raise UsageError(
            f"git cannot compare {checkout.top} with {commit[:12]} ({error})."
        ) from None
    names = sorted({name for name in (listed + new).decode(errors="replace").split("\0") if name})
    files: list[TouchedFile] = []
    same: list[str] = []
    other: list[str] = []
    for name in names:
        if not name.endswith(".py"):
            other.append(name)
            continue
        touched = _touched(name, base / name, head / name)
        if touched is None:
            same.append(name)
        else:
            files.append(touched)
    return Changes(tuple(files), tuple(same), tuple(other))


@dataclass(frozen=True, slots=True)
class _Source:
    """A file's code, and the lines of its functions."""

    spans: list[tuple[int, int, str, bool]] = field(default_factory=list)
    """First line with decorators, last line, dotted name, whether Triton compiles it."""
    dumped: str = ""

    def at(self, line: int) -> tuple[str, bool]:
        """The innermost function around a line."""
        around = [span for span in self.spans if span[0] <= line <= span[1]]
        if not around:
            return MODULE, False
        _, _, name, _ = max(around)
        return name, any(span[3] for span in around)


def _touched(name: str, base: Path, head: Path) -> TouchedFile | None:
    """None where both texts are the same code."""
    before, after = read_source(base), read_source(head)
    if before.dumped and before.dumped == after.dumped:
        return None
    functions: set[str] = set()
    kernels, lines = False, 0
    for source, changed in zip((before, after), _changed_lines(base, head), strict=True):
        for line in changed:
            function, kernel = source.at(line)
            functions.add(function)
            kernels = kernels or kernel
        lines += len(changed)
    known = {span[2] for span in (*before.spans, *after.spans)} | {MODULE}
    return TouchedFile(name, frozenset(functions & known) or frozenset({MODULE}), kernels, lines)


def read_source(path: Path) -> _Source:
    """The functions of a file; nothing of one that is missing or no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return _Source()
    spans: list[tuple[int, int, str, bool]] = []
    _walk(tree, "", spans)
    return _Source(spans, ast.dump(tree))


def _walk(node: ast.AST, prefix: str, spans: list[tuple[int, int, str, bool]]) -> None:
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (ast.FunctionDef, ast.AsyncFunctionDef)):
            first = min([child.lineno, *(one.lineno for one in child.decorator_list)])
            name = f"{prefix}{child.name}"
            spans.append((first, child.end_lineno or first, name, _is_kernel(child)))
            _walk(child, f"{name}.", spans)
        elif isinstance(child, ast.ClassDef):
            _walk(child, f"{prefix}{child.name}.", spans)
        else:
            _walk(child, prefix, spans)


def _is_kernel(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    for decorator in function.decorator_list:
        called = decorator.func if isinstance(decorator, ast.Call) else decorator
        name = called.attr if isinstance(called, ast.Attribute) else getattr(called, "id", "")
        if name in _KERNEL_DECORATORS:
            return True
    return False


def _changed_lines(base: Path, head: Path) -> tuple[list[int], list[int]]:
    """Numbers of the lines that differ, in the base's file and in the tree's.

    Where one of them has nothing, the line before stands for the place.
    """
    before, after = (str(path) if path.is_file() else "/dev/null" for path in (base, head))
    old, new = (Path(path).read_text("utf-8", "replace").splitlines() for path in (before, after))
    text = "\n".join(difflib.unified_diff(old, new, n=0, lineterm=""))
    found: tuple[list[int], list[int]] = ([], [])
    for match in _HUNK.finditer(text):
        for side, (start, count) in enumerate(((match[1], match[2]), (match[3], match[4]))):
            many = int(count) if count is not None else 1
            found[side].extend(range(int(start), int(start) + max(many, 1)))
    return found
