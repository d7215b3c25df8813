"""A change is in place wherever the function is held, and in modules that are imported later."""

from __future__ import annotations

import gc
import importlib
import inspect
import sys
from collections.abc import Iterator
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import ModuleType

import pytest

from fuzzgraph.mutants.drawing import Candidate, candidates
from fuzzgraph.mutants.planting import NotPlanted, live_functions, plant
from fuzzgraph.mutants.source import Source

TEXT = """
import functools


def twice(function):
    @functools.wraps(function)
    def call(*args):
        return 2 * function(*args)
    return call


def plain(x):
    return x + 10


class Engine:
    def method(self, x):
        return x + 20

    @staticmethod
    @twice
    def decorated(x):
        return x + 30

    @classmethod
    def made(cls, x):
        return x + 40

    @property
    def size(self):
        return 50


def adder(y):
    def add(x):
        return x + y + 60
    return add


HELD = {"plain": plain}
ADD = adder(1)
"""


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    stock = SourceFileLoader.get_code
    (tmp_path / "planted_engine.py").write_text(TEXT)
    monkeypatch.syspath_prepend(str(tmp_path))
    yield importlib.import_module("planted_engine")
    SourceFileLoader.get_code = stock  # type: ignore[method-assign]
    sys.modules.pop("planted_engine", None)
    gc.unfreeze()


def change(module: ModuleType | Path, before: str, after: str) -> int:
    """Plant the change of a line; how many functions run it."""
    path = str(module if isinstance(module, Path) else module.__file__)
    source = Source.read(path)
    return plant(source, wanted(source, before, after), live_functions([path]))


def wanted(source: Source, before: str, after: str) -> Candidate:
    every = candidates("planted_engine", source, range(1, 100))
    return next(one for one in every if (one.mutant.before, one.mutant.after) == (before, after))


@pytest.mark.parametrize(
    ("call", "number", "planted"),
    [
        ("HELD['plain'](1)", 10, 12),
        ("Engine().method(1)", 20, 22),
        ("Engine.decorated(1)", 30, 64),
        ("Engine.made(1)", 40, 42),
        ("Engine().size", 50, 51),
        ("ADD(1)", 60, 63),
        ("adder(1)(1)", 60, 63),
    ],
)
def test_whoever_holds_the_function_calls_the_change(
    engine: ModuleType, call: str, number: int, planted: int
) -> None:
    lines = [line.strip() for line in TEXT.splitlines() if line.strip().endswith(str(number))]
    before = lines[-1]
    healthy = eval(call, vars(engine))
    assert change(engine, before, before.replace(str(number), str(number + 1))) >= 1
    assert eval(call, vars(engine)) == planted != healthy


def test_functions_out_of_the_collectors_passes_are_found(engine: ModuleType) -> None:
    gc.freeze()
    assert change(engine, "return x + 10", "return x + 11") == 1
    assert engine.plain(1) == 12


def test_others_go_on_as_they_were(engine: ModuleType) -> None:
    change(engine, "return x + 10", "return x - 10")
    assert (engine.plain(1), engine.Engine().method(1), engine.ADD(1)) == (-9, 21, 62)


def test_who_reads_the_source_reads_the_change(engine: ModuleType) -> None:
    change(engine, "return x + 10", "return x + 11")
    assert "x + 11" in inspect.getsource(engine.plain)


def test_a_module_that_is_imported_later_has_the_change(engine: ModuleType) -> None:
    del sys.modules["planted_engine"]
    change(Path(str(engine.__file__)), "return x + 10", "return x + 11")
    assert importlib.import_module("planted_engine").plain(1) == 12


def test_a_change_of_what_a_closure_shares_is_refused(engine: ModuleType) -> None:
    text = TEXT.replace("return x + y + 60", "x = x\n        x += y\n        return x")
    Path(str(engine.__file__)).write_text(text)
    with pytest.raises(NotPlanted, match="shares with its closure"):
        change(engine, "x += y", "pass")


def test_a_change_that_compiles_to_the_same_is_refused(engine: ModuleType) -> None:
    text = TEXT.replace("return x + 10", "return (x, 0 and x)[0] if 1 else 2")
    Path(str(engine.__file__)).write_text(text)
    with pytest.raises(NotPlanted, match="same code"):
        change(engine, "return (x, 0 and x)[0] if 1 else 2", "return (x, 0 and x)[0] if 1 else 3")
