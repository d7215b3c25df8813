"""Which mutants there are of the lines that a target executes, and in which order they are tried.

The order depends on the seed and on each mutant alone, so that a longer sample begins with the
shorter one, and a target that executes a few lines more keeps most of its sample.
"""

from __future__ import annotations

import ast
import hashlib
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from fuzzgraph.mutants.names import Scope, dotted
from fuzzgraph.mutants.operators import OPERATORS, Operator
from fuzzgraph.mutants.records import Mutant
from fuzzgraph.mutants.source import Edit, Source

_SILENT = ("logger", "logging", "warnings", "print", "tqdm")
"""Calls of these change no state that a replay sees."""
_LONGEST = 6
"""Lines of a statement that is left out whole: a longer one is no one-line change."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """A mutant and how its module's source is changed."""

    mutant: Mutant
    path: str
    edit: Edit


def candidates(
    module: str, source: Source, lines: Iterable[int], operators: Sequence[str] = ()
) -> Iterator[Candidate]:
    """All one-line changes of executed lines within functions, in the order of the source."""
    executed = frozenset(lines)
    chosen = [row for name, row in OPERATORS.items() if name in operators or not operators]
    seen = set()
    for name, function in functions(source.tree):
        scope = Scope(source, function)
        for node in _nodes(function, executed):
            for made in _of_node(module, name, node, scope, chosen):
                if made.mutant.id not in seen:
                    seen.add(made.mutant.id)
                    yield made


def in_order(found: Iterable[Candidate], seed: int) -> list[Candidate]:
    """First one of each line, lines in an order drawn with the seed; then another one of each."""
    by_line: dict[tuple[str, int], list[Candidate]] = defaultdict(list)
    for one in found:
        by_line[one.mutant.module, one.mutant.line].append(one)
    ordered = []
    for (module, line), here in by_line.items():
        place = digest(seed, module, line)
        ordered += [(rank, place, one) for rank, one in enumerate(_of_line(here, seed))]
    ordered.sort(key=lambda row: row[:2])
    return [one for _, _, one in ordered]


def _of_line(here: Sequence[Candidate], seed: int) -> list[Candidate]:
    """One of each operator, then the second ones: few operators make most of the changes."""
    ranked = []
    by_operator: Mapping[str, list[Candidate]] = defaultdict(list)
    for one in here:
        by_operator[one.mutant.operator].append(one)
    for operator, ones in by_operator.items():
        ones.sort(key=lambda one: digest(seed, one.mutant.id))
        for rank, one in enumerate(ones):
            ranked.append(((rank, digest(seed, one.mutant.line, operator)), one))
    ranked.sort(key=lambda row: row[0])
    return [one for _, one in ranked]


def digest(*parts: object) -> str:
    """Of some parts: an order that depends on them alone."""
    return hashlib.sha256("/".join(map(str, parts)).encode()).hexdigest()


def functions(
    node: ast.AST, prefix: str = ""
) -> Iterator[tuple[str, ast.FunctionDef | ast.AsyncFunctionDef]]:
    """Every function of a module with its qualified name, nested ones too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            yield prefix + child.name, child
            yield from functions(child, f"{prefix}{child.name}.<locals>.")
        elif isinstance(child, ast.ClassDef):
            yield from functions(child, f"{prefix}{child.name}.")
        else:
            yield from functions(child, prefix)


def _nodes(
    function: ast.FunctionDef | ast.AsyncFunctionDef, executed: frozenset[int]
) -> Iterator[ast.AST]:
    """Nodes of its own executed statements, without those that change nothing that runs."""
    waiting: list[ast.AST] = list(reversed(function.body))
    while waiting:
        node = waiting.pop()
        if _is_silent(node):
            continue
        line = getattr(node, "lineno", None)
        # A statement over several lines may run in part. A compound one's own line is its header.
        if (
            line is not None
            and line in executed
            or isinstance(node, ast.Slice)
            and _begin(node) in executed
        ):
            yield node
        skipped = node.annotation if isinstance(node, ast.AnnAssign) else None
        waiting += [child for child in ast.iter_child_nodes(node) if child is not skipped][::-1]


def _begin(node: ast.Slice) -> int | None:
    bound = node.lower or node.upper
    return bound.lineno if bound is not None else None


def _is_silent(node: ast.AST) -> bool:
    if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
        return True  # it has a turn of its own, or runs at its definition only
    if isinstance(node, ast.Raise | ast.Assert | ast.JoinedStr | ast.Import | ast.ImportFrom):
        return True
    if isinstance(node, ast.Call):
        return (dotted(node.func) or "").partition(".")[0] in _SILENT
    return isinstance(node, ast.Expr) and (
        isinstance(node.value, ast.Constant) or _is_silent(node.value)
    )


def _of_node(
    module: str, function: str, node: ast.AST, scope: Scope, operators: Sequence[Operator]
) -> Iterator[Candidate]:
    for operator in operators:
        for edit in operator.edits(node, scope):
            made = _candidate(module, function, scope.source, operator.name, edit)
            if made is not None:
                yield made


def _candidate(
    module: str, function: str, source: Source, operator: str, edit: Edit
) -> Candidate | None:
    """The mutant of an edit; None if it is too long or says the same as before."""
    if source.bytes.count(b"\n", edit.start, edit.end) >= _LONGEST:
        return None
    first, before, after = source.changed_lines(edit)
    if before == after:
        return None
    column, length = edit.start - source.offset(first, 0), edit.end - edit.start
    named = "|".join(map(str, (module, first, column, length, operator, edit.text)))
    mutant = Mutant(
        id=hashlib.sha256(named.encode()).hexdigest()[:12],
        module=module,
        function=function,
        line=first,
        operator=operator,
        before=_shown(before),
        after=_shown(after),
    )
    return Candidate(mutant, source.path, edit)


def _shown(text: str) -> str:
    kept = [line.rstrip().removesuffix("\\").rstrip() for line in text.splitlines()]
    return textwrap.dedent("\n".join(line for line in kept if line)).strip("\n")
