"""The line that a change touches comes first where it leads to a finding, and only there."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.finding import EngineLine, LineRole, Place
from fuzzgraph.gate.changed_lines import ChangedLines
from fuzzgraph.gate.changes import Changes, TouchedFile

BELOW = "python/engine"
ENGINE = """\
def prepare(size):
    extra = size + 1
    fill(extra)


def fill(extra):
    write(extra)


def other():
    pass


LIMIT = 4
"""


def place(line: int, function: str) -> Place:
    return Place(path=f"{BELOW}/a.py", line=line, function=function)


def line(role: LineRole, number: int, function: str, *callers: Place) -> EngineLine:
    return EngineLine(
        role=role,
        path=f"{BELOW}/a.py",
        line=number,
        function=function,
        does="writes x",
        callers=callers,
    )


WRITTEN = line("written", 7, "fill", place(3, "prepare"))
ALLOCATED = line("allocated", 11, "other")


def first(tmp_path: Path, *changed: int) -> tuple[EngineLine, ...]:
    """The lines of a finding by a change of these lines."""
    (tmp_path / "a.py").write_text(ENGINE)
    file = TouchedFile("a.py", here=frozenset(changed))
    return ChangedLines(Changes((file,)), tmp_path, BELOW).first((WRITTEN, ALLOCATED))


def test_a_line_that_is_changed_itself_moves_to_the_front(tmp_path: Path) -> None:
    moved, rest = first(tmp_path, 11)
    assert (moved.role, moved.line, rest) == ("allocated", 11, WRITTEN)
    assert moved.does == "writes x; the change touches it"


def test_a_changed_call_on_the_way_comes_first(tmp_path: Path) -> None:
    changed, *rest = first(tmp_path, 2, 3)
    assert (changed.role, changed.line, changed.function) == ("changed", 3, "prepare")
    assert changed.does == "is touched by the change, and leads to a.py:7 in fill, which writes x"
    assert rest == [WRITTEN, ALLOCATED]


def test_a_changed_line_of_a_function_on_the_way_comes_first(tmp_path: Path) -> None:
    changed, *rest = first(tmp_path, 2, 15)
    assert (changed.role, changed.line, changed.function) == ("changed", 2, "prepare")
    assert "in a function that leads to a.py:7" in changed.does
    assert rest == [WRITTEN, ALLOCATED]


@pytest.mark.parametrize("changed", [(), (15,), (99,)])
def test_a_change_that_is_not_on_the_way_is_not_named(
    tmp_path: Path, changed: tuple[int, ...]
) -> None:
    assert first(tmp_path, *changed) == (WRITTEN, ALLOCATED)


def test_a_file_that_is_not_changed_is_not_named(tmp_path: Path) -> None:
    changes = Changes((TouchedFile("b.py", here=frozenset({3, 7, 11})),))
    assert ChangedLines(changes, tmp_path, BELOW).first((WRITTEN,)) == (WRITTEN,)
