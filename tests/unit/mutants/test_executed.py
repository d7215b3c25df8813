"""Which lines count as executed: those of the engine's functions, in capture and preparation."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fuzzgraph.finding import Stage
from fuzzgraph.mutants.executed import ExecutedLines

ENGINE = """
SIZE = 1

def prepare(x):
    if x:
        return 1
    return [y for y in range(2)]

def load():
    import traced_engine_later

class Session:
    def prepare(self):
        return prepare(0)
"""
LATER = """
def at_import():
    return 1

VALUE = at_import()
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    (tmp_path / "traced_engine.py").write_text(ENGINE)
    (tmp_path / "traced_engine_later.py").write_text(LATER)
    monkeypatch.syspath_prepend(str(tmp_path))
    before = sys.gettrace()
    yield importlib.import_module("traced_engine")
    sys.settrace(before)
    for name in ("traced_engine", "traced_engine_later"):
        sys.modules.pop(name, None)


def lines(engine: ModuleType, stage: Stage, *, owner: object = None) -> dict[str, set[int]]:
    found = ExecutedLines(("traced_engine", "traced_engine_later"))
    if owner is not None:
        found.leave_out(owner)
    before = sys.gettrace()
    found.enter(stage, 0)
    engine.Session().prepare()
    engine.load()
    found.enter("check", 0)
    sys.settrace(before)
    return dict(found.lines)


@pytest.mark.parametrize("stage", ["capture", "prepare", "replay"])
def test_lines_of_functions_are_noted(engine: ModuleType, stage: Stage) -> None:
    assert lines(engine, stage) == {"traced_engine": {5, 7, 10, 14}}


@pytest.mark.parametrize("stage", ["open", "warmup", "eager", "check"])
def test_other_stages_count_for_nothing(engine: ModuleType, stage: Stage) -> None:
    assert lines(engine, stage) == {}


def test_methods_of_the_target_and_its_session_are_not_the_engines(engine: ModuleType) -> None:
    found = lines(engine, "prepare", owner=engine.Session())
    assert found == {"traced_engine": {5, 7, 10}}


def test_code_of_others_is_not_noted(engine: ModuleType) -> None:
    found = ExecutedLines(("other_engine",))
    before = sys.gettrace()
    found.enter("prepare", 0)
    engine.Session().prepare()
    found.stop()
    sys.settrace(before)
    assert found.lines == {}
