"""Each kind of change: what it makes of a line, and what it leaves alone."""

from __future__ import annotations

import ast
from textwrap import dedent

import pytest

from fuzzgraph.mutants.drawing import Candidate, candidates, in_order
from fuzzgraph.mutants.operators import OPERATORS
from fuzzgraph.mutants.source import Source


def drawn(text: str, *operators: str, lines: range | None = None) -> list[Candidate]:
    source = Source("engine.py", dedent(text).lstrip().encode())
    executed = lines if lines is not None else range(1, 100)
    return list(candidates("engine", source, executed, operators))


def changes(line: str, operator: str, *before: str) -> set[str]:
    """What an operator makes of the last line of a function that has these arguments."""
    names = "bs, raw_bs, padded_bs, x, seq_lens, out, flag, self, a, b"
    body = "".join(f"    {one}\n" for one in (*before, line))
    found = drawn(f"def prepare({names}):\n{body}", operator)
    return {one.mutant.after for one in found if one.mutant.line == 2 + len(before)}


@pytest.mark.parametrize(
    ("operator", "line", "wanted"),
    [
        ("off_by_one", "out = x + 1", {"out = x + 2", "out = x + 0"}),
        ("off_by_one", "out = a < b", {"out = a <= b"}),
        ("wrong_constant", "out = f(True)", {"out = f(False)"}),
        ("wrong_constant", "out = x + 16", {"out = x + 0", "out = x + 32"}),
        ("wrong_constant", "out = x.to(torch.int32)", {"out = x.to(torch.int64)"}),
        ("wrong_operator", "out = a * b", {"out = a // b"}),
        ("wrong_operator", "out = max(a, b)", {"out = min(a, b)"}),
        ("wrong_operator", "out = a and b", {"out = a or b"}),
        ("wrong_operator", "out = a not in b", {"out = a in b"}),
        ("wrong_operator", "out = a is not b", {"out = a is b"}),
        ("wrong_operator", "out += a", {"out -= a"}),
        ("negated_condition", "out = a if flag else b", {"out = a if (not (flag)) else b"}),
        ("negated_condition", "out = a if not flag else b", {"out = a if (flag) else b"}),
        ("slice_end", "out = x[:bs]", {"out = x[:(bs) + 1]", "out = x[:(bs) - 1]", "out = x[:]"}),
        ("dropped_statement", "out.copy_(x)", {"pass"}),
        ("dropped_statement", "out[:bs] = x", {"pass"}),
        ("dropped_statement", "out = x", set()),
        ("wrong_name", "out = x[:bs]", {"out = x[:raw_bs]", "out = x[:padded_bs]"}),
        ("swapped_arguments", "f(a, b)", {"f(b, a)"}),
        ("swapped_arguments", "f(1, 2)", set()),
        ("dropped_copy", "out = (a + b).clone()", {"out = (a + b)"}),
        ("stale", "out = x + 1", {"pass"}),
    ],
)  # fmt: skip
def test_an_operator_changes_a_line(operator: str, line: str, wanted: set[str]) -> None:
    read = ("f(raw_bs, padded_bs)",) if operator == "wrong_name" else ()
    assert changes(line, operator, *read) == wanted


def test_a_stale_attribute_keeps_the_value_that_it_has() -> None:
    (after,) = changes("self.plan = x", "stale")
    scope: dict[str, object] = {}
    exec(f"def prepare(self, x):\n    {after}", scope)
    engine = type("Engine", (), {})()
    prepare = scope["prepare"]
    assert callable(prepare)
    prepare(engine, 1)
    prepare(engine, 2)
    assert engine.plan == 1  # type: ignore[attr-defined]


def test_a_local_name_is_stale_only_where_it_has_an_older_value() -> None:
    text = "def prepare(x):\n    y = x\n    y = y + 1\n"
    assert [one.mutant.line for one in drawn(text, "stale")] == [3]


def test_a_new_object_has_nothing_stale() -> None:
    text = "class Plan:\n    def __init__(self, x):\n        self.x = x\n"
    assert drawn(text, "stale") == []


def test_a_name_that_has_no_value_yet_is_not_taken() -> None:
    text = "def prepare(bs):\n    x = bs\n    raw_bs = 1\n    return raw_bs + bs\n"
    assert [one.mutant.line for one in drawn(text, "wrong_name")] == [4, 4]


@pytest.mark.parametrize(
    "line",
    [
        "raise ValueError(f'{x} is not {1}')",
        "assert x == 1",
        "logger.info(x, 1)",
        "print(x + 1)",
        "'a text of 1'",
        "y: list[1]",
    ],
)
def test_what_no_replay_can_see_is_not_changed(line: str) -> None:
    assert drawn(f"def prepare(x):\n    {line}\n") == []


def test_only_bodies_of_functions_are_changed() -> None:
    text = """
        SIZE = 1
        class Plan:
            width = 2
            @decorated(3)
            def prepare(self, rows=4):
                return rows
    """
    assert drawn(text) == []


def test_only_executed_lines_are_changed() -> None:
    text = "def prepare(x):\n    if x:\n        x.fill_(1)\n    x.fill_(2)\n"
    found = drawn(text, "dropped_statement", lines=range(4, 5))
    assert [one.mutant.before for one in found] == ["x.fill_(2)"]


def test_every_change_is_python_and_leaves_later_lines_where_they_were() -> None:
    text = """
        def prepare(self, bs, raw_bs, out, x):
            out[:bs].copy_(
                x[raw_bs : bs + 1],
                non_blocking=True,
            )
            x = x.clone()
            if bs > raw_bs and (
                self.flag or bs == 1
            ):
                out = max(
                    out,
                    raw_bs,
                ); self.x = 1
            return out
    """
    found = drawn(text)
    assert {one.mutant.operator for one in found} == set(OPERATORS)
    source = Source("engine.py", dedent(text).lstrip().encode())
    last = len(source.lines)
    for one in found:
        changed = source.edited(one.edit)
        assert changed.count(b"\n") == source.bytes.count(b"\n")
        function = ast.parse(changed).body[0]
        assert isinstance(function, ast.FunctionDef) and function.body[-1].lineno == last


def test_columns_behind_letters_beyond_ascii_are_right() -> None:
    (found,) = drawn("def prepare(x):\n    y = 'ä€', x.clone()\n", "dropped_copy")
    assert found.mutant.after == "y = 'ä€', x"


def test_a_longer_sample_begins_with_the_shorter_one_and_a_seed_decides_it() -> None:
    text = "".join(f"def f{n}(a, b):\n    return a + b * {n} < 3\n" for n in range(20))
    found = drawn(text)
    order = [one.mutant.id for one in in_order(found, 1)]
    assert [one.mutant.id for one in in_order(list(reversed(found)), 1)] == order
    assert [one.mutant.id for one in in_order(found, 2)] != order
    fewer = [one for one in found if one.mutant.line != 2]
    kept = [one.mutant.id for one in in_order(fewer, 1)]
    assert kept == [name for name in order if name in kept]


def test_each_line_has_a_turn_before_one_has_a_second() -> None:
    text = "def f(a, b, c):\n    x = f(a + 1, b + 2, c + 3)\n    y = f(a)\n    return x < y\n"
    order = in_order(drawn(text), 1)
    lines = [one.mutant.line for one in order]
    assert sorted(lines[:2]) == [2, 4]
