"""Which statements changed lines belong to."""

from __future__ import annotations

import ast

import pytest

from fuzzgraph.gate.statements import statements_at

SOURCE = '''from __future__ import annotations
"""Docs."""
import os

# a comment
def prepare(rows, size=1,
            more=2):
    """Docs."""
    if rows > size:
        count = call(
            rows,
            size,
        )
    elif size:
        count = 1
    else:
        count = 2
    try:
        with open("x") as file:
            one()
    except (OSError,
            ValueError):
        two()
    finally:
        three()
    for row in rows: count += 1
    return count


@decorated(
    by="x",
)
class Runner:
    size = 3
'''


@pytest.mark.parametrize(
    ("line", "statement"),
    [
        (3, 3),
        (7, 6),  # a default
        (9, 9),  # the condition
        (10, 10),
        (12, 10),  # inside a call of several lines
        (14, 14),  # elif
        (17, 17),
        (18, 18),
        (19, 19),
        (22, 23),  # of what is caught: the first statement behind it
        (25, 25),
        (26, 26),
        (31, 33),  # a decorator: the class
        (34, 34),
    ],
)
def test_a_line_belongs_to_the_innermost_statement(line: int, statement: int) -> None:
    assert statements_at(ast.parse(SOURCE), [line]) == {statement}


@pytest.mark.parametrize("line", [1, 2, 4, 5, 8, 16, 24, 28])
def test_what_says_nothing_to_the_interpreter_is_part_of_no_statement(line: int) -> None:
    """The future, docstrings, comments, blank lines, `else:` and `finally:`."""
    assert not statements_at(ast.parse(SOURCE), [line])


def test_a_case_of_a_match_stands_for_what_is_behind_it() -> None:
    source = "match x:\n    case [1,\n          2]:\n        one()\n    case _:\n        two()\n"
    assert statements_at(ast.parse(source), [3]) == {4}
    assert statements_at(ast.parse(source), [1]) == {1}
