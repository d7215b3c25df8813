"""What a change touches: files of the engine's package, and in them functions."""

from __future__ import annotations

import ast
import difflib
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from fuzzgraph.checkout import Checkout, GitFailed, git
from fuzzgraph.errors import UsageError
from fuzzgraph.gate.statements import statements_at

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
    added: tuple[int, ...] = ()
    """First lines of the statements that changed, in the tree; kernels' are not among them."""
    removed: tuple[int, ...] = ()
    """The same in the base."""
    here: frozenset[int] = frozenset()
    """All changed lines of the tree; where lines were only taken away, the place."""


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
    tree: ast.Module = field(default_factory=lambda: ast.Module([], []))

    def statements(self, lines: Sequence[int]) -> tuple[int, ...]:
        """First lines of the statements that Python executes; a kernel's it never does."""
        return tuple(sorted(statements_at(self.tree, [n for n in lines if not self.at(n)[1]])))

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
    kernels, lines, here = False, 0, frozenset[int]()
    statements = []
    for source, changed in zip((before, after), _changed_lines(base, head), strict=True):
        for line in (*changed.lines, *changed.places):
            function, kernel = source.at(line)
            functions.add(function)
            kernels = kernels or kernel
        here = frozenset((*changed.lines, *changed.places))  # at last those of the tree
        lines += len(changed.lines)
        statements.append(source.statements(changed.lines))
    known = {span[2] for span in (*before.spans, *after.spans)} | {MODULE}
    return TouchedFile(
        path=name,
        functions=frozenset(functions & known) or frozenset({MODULE}),
        kernels=kernels,
        lines=lines,
        added=statements[1],
        removed=statements[0],
        here=here,
    )


def read_source(path: Path) -> _Source:
    """The functions of a file; nothing of one that is missing or no Python."""
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        return _Source()
    spans: list[tuple[int, int, str, bool]] = []
    _walk(tree, "", spans)
    return _Source(spans, ast.dump(tree), tree)


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


@dataclass(slots=True)
class _Changed:
    """What differs, in one of two files."""

    lines: list[int] = field(default_factory=list)
    places: list[int] = field(default_factory=list)
    """Lines behind which this file has nothing where the other one has something."""


def _changed_lines(base: Path, head: Path) -> tuple[_Changed, _Changed]:
    """Of the base's file and of the tree's."""
    before, after = (str(path) if path.is_file() else "/dev/null" for path in (base, head))
    old, new = (Path(path).read_text("utf-8", "replace").splitlines() for path in (before, after))
    text = "\n".join(difflib.unified_diff(old, new, n=0, lineterm=""))
    found = (_Changed(), _Changed())
    for match in _HUNK.finditer(text):
        for side, (start, count) in zip(
            found, ((match[1], match[2]), (match[3], match[4])), strict=True
        ):
            many = int(count) if count is not None else 1
            side.lines.extend(range(int(start), int(start) + many))
            if not many:
                side.places.append(int(start))
    return found
