"""The kinds of one-line changes: one row for each in `OPERATORS`.

Each takes a node of a function's body and yields edits of the source. What follows from Python's
grammar stands here; what changed text is worth trying is decided in `drawing`.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise

from fuzzgraph.mutants.names import Scope, dotted
from fuzzgraph.mutants.source import Edit, Source

Yields = Callable[[ast.AST, Scope], Iterator[Edit]]


@dataclass(frozen=True, slots=True)
class Operator:
    """One kind of change."""

    name: str
    about: str
    edits: Yields


def _off_by_one(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    source = scope.source
    if isinstance(node, ast.Constant) and type(node.value) is int:
        yield source.replace(node, str(node.value + 1))
        if node.value > 0:
            yield source.replace(node, str(node.value - 1))
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _symbol(source, node.left, node.comparators[0], _NEIGHBOURS)


def _wrong_constant(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if isinstance(node, ast.Constant):
        value = node.value
        if isinstance(value, bool):
            yield scope.source.replace(node, str(not value))
        elif type(value) is int and value > 1:
            yield scope.source.replace(node, "0")
            yield scope.source.replace(node, str(2 * value))
        elif isinstance(value, float):
            yield scope.source.replace(node, repr(value + 1.0))
    if isinstance(node, ast.Attribute) and node.attr in _DTYPES:
        yield scope.source.replace(node, scope.source.text(node.value) + "." + _DTYPES[node.attr])


def _wrong_operator(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    source = scope.source
    if isinstance(node, ast.BinOp):
        yield from _symbol(source, node.left, node.right, _ARITHMETIC)
    if isinstance(node, ast.Compare) and len(node.ops) == 1:
        yield from _symbol(source, node.left, node.comparators[0], _EQUALITIES)
    if isinstance(node, ast.AugAssign):
        yield from _symbol(source, node.target, node.value, _ASSIGNED)
    if isinstance(node, ast.BoolOp):
        yield from _symbol(source, node.values[0], node.values[1], _BOOLEAN)
    if isinstance(node, ast.Call) and dotted(node.func) is not None:
        name = source.text(node.func)
        *path, last = name.split(".")
        if last in _EXTREMES:
            yield source.replace(node.func, ".".join([*path, _EXTREMES[last]]))


def _negated_condition(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if isinstance(node, ast.If | ast.While | ast.IfExp):
        test = node.test
        if isinstance(test, ast.UnaryOp) and isinstance(test.op, ast.Not):
            yield scope.source.replace(test, f"({scope.source.text(test.operand)})")
        else:
            yield scope.source.replace(test, f"(not ({scope.source.text(test)}))")


def _slice_end(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if not isinstance(node, ast.Slice):
        return
    source = scope.source
    for bound, text in ((node.lower, "lower"), (node.upper, "upper")):
        if bound is None:
            continue
        said = source.text(bound)
        yield source.replace(bound, f"({said}) + 1")
        if not isinstance(bound, ast.Constant):
            yield source.replace(bound, f"({said}) - 1")
        if text == "upper":
            yield source.replace(bound, "")


def _dropped_statement(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call):
        yield scope.source.replace(node, "pass")
    if isinstance(node, ast.AugAssign):
        yield scope.source.replace(node, "pass")
    if isinstance(node, ast.Assign) and any(
        isinstance(target, ast.Attribute | ast.Subscript) for target in node.targets
    ):
        yield scope.source.replace(node, "pass")


def _wrong_name(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if not isinstance(node, ast.Name | ast.Attribute) or not isinstance(node.ctx, ast.Load):
        return
    for other in scope.others(node):
        yield scope.source.replace(node, other)


def _swapped_arguments(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if not isinstance(node, ast.Call):
        return
    words = [word.value for word in node.keywords if word.arg is not None]
    for one, two in (*pairwise(node.args), *pairwise(words)):
        if _is_value(one) and _is_value(two) and scope.source.text(one) != scope.source.text(two):
            yield _swap(scope.source, one, two)


def _dropped_copy(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
        return
    if node.func.attr in _COPIES:
        called = scope.source.text(node.func)
        yield scope.source.replace(node, called[: called.rindex(".")].rstrip())


def _stale(node: ast.AST, scope: Scope) -> Iterator[Edit]:
    if not isinstance(node, ast.Assign) or len(node.targets) != 1:
        return
    target, value = node.targets[0], node.value
    if isinstance(target, ast.Name) and scope.bound_before(target):
        yield scope.source.replace(node, "pass")
    if scope.function.name == "__init__":
        return  # a new object has no older value
    if isinstance(target, ast.Attribute) and isinstance(target.value, ast.Name):
        owner, said = target.value.id, scope.source.text(value)
        old = f"getattr({owner}, {target.attr!r}, None)"
        yield scope.source.replace(value, f"({said}) if {old} is None else {old}")


def _symbol(
    source: Source, left: ast.expr, right: ast.expr, others: dict[str, str]
) -> Iterator[Edit]:
    """Another operator between two operands."""
    start, text = source.between(left, right)
    found = _SYMBOL.search(text)
    if found and found.group() in others:
        begin = start + len(text[: found.start()].encode())
        yield Edit(begin, begin + len(found.group().encode()), others[found.group()])


def _swap(source: Source, one: ast.expr, two: ast.expr) -> Edit:
    (start, stop), (second, end) = source.span(one), source.span(two)
    between = source.bytes[stop:second].decode()
    return Edit(start, end, source.text(two) + between + source.text(one))


def _is_value(node: ast.expr) -> bool:
    return isinstance(node, ast.Name | ast.Attribute | ast.Subscript)


_SYMBOL = re.compile(
    r"//=?|\*\*=?|[<>=!]=|<<|>>|[-+*/%&|]=?|[<>]|\band\b|\bor\b|\bis not\b|\bnot in\b|\bis\b|\bin\b"
)
_NEIGHBOURS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
_EQUALITIES = {
    "==": "!=", "!=": "==", "is": "is not", "is not": "is", "in": "not in", "not in": "in",
}  # fmt: skip
_ARITHMETIC = {
    "+": "-", "-": "+", "*": "//", "//": "*", "/": "*", "%": "//", "&": "|", "|": "&",
}  # fmt: skip
_ASSIGNED = {"+=": "-=", "-=": "+=", "*=": "//=", "//=": "*="}
_BOOLEAN = {"and": "or", "or": "and"}
_EXTREMES = {"min": "max", "max": "min", "minimum": "maximum", "maximum": "minimum",
             "amax": "amin", "amin": "amax"}  # fmt: skip
_DTYPES = {"int32": "int64", "int64": "int32", "bool": "uint8"}
_COPIES = ("clone", "contiguous", "to", "copy", "detach")

OPERATORS: dict[str, Operator] = {
    row.name: row
    for row in (
        Operator("off_by_one", "an integer or a comparison is off by one", _off_by_one),
        Operator("wrong_constant", "another number, flag or dtype", _wrong_constant),
        Operator("wrong_operator", "minus for plus, or for and, max for min", _wrong_operator),
        Operator("negated_condition", "the other branch", _negated_condition),
        Operator("slice_end", "a slice ends or begins one off, or does not end", _slice_end),
        Operator(
            "dropped_statement", "a call, copy, fill or write is left out", _dropped_statement
        ),
        Operator("wrong_name", "a name of the same kind: raw for padded", _wrong_name),
        Operator("swapped_arguments", "two neighbouring arguments of a call", _swapped_arguments),
        Operator("dropped_copy", "no clone, no contiguous, no conversion", _dropped_copy),
        Operator("stale", "an assignment keeps the older value", _stale),
    )
}
