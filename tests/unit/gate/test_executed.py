"""What targets execute, recorded in processes of their own and kept until a file changes."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.gate.executed import Executed, ExecutedMap
from fuzzgraph.run.spec import Setup

TARGETS = """
import os
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.errors import AdapterUnavailable

class Calling(BuiltinTarget):
    package = "engine"
    isolated = True

    def load(self):
        import engine.runner

    def open(self, *arguments):
        from engine.runner import prepare
        prepare()
        return super().open(*arguments)

class Missing(Calling):
    def load(self):
        raise AdapterUnavailable("no such runner in this engine")

class Dying(Calling):
    def open(self, *arguments):
        os._exit(7)
"""
RUNNER = """
def prepare():
    return _helped()


def _helped():
    return 1


def never_called():
    return 2
"""
NAMES = ["made:Calling", "made:Missing", "made:Dying"]


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "made.py").write_text(TARGETS)
    (tmp_path / "tree" / "engine").mkdir(parents=True)
    (tmp_path / "tree" / "engine" / "__init__.py").write_text("")
    (tmp_path / "tree" / "engine" / "runner.py").write_text(RUNNER)
    (tmp_path / "tree" / "engine" / "unused.py").write_text(RUNNER)
    return tmp_path / "tree"


def map_of(tree: Path) -> ExecutedMap:
    return ExecutedMap("engine", tree, Setup(target=NAMES[0], source=str(tree)))


def test_functions_that_ran_and_files_that_were_imported_are_recorded(engine: Path) -> None:
    told: list[Executed] = []
    made = map_of(engine).record(NAMES, jobs=2, told=told.append)
    assert sorted(made) == sorted(one.target for one in told) == sorted(NAMES)
    calling = made["made:Calling"]
    assert calling.functions == {"runner.py": ["_helped", "prepare"]}
    assert set(calling.files) == {"__init__.py", "runner.py"}
    assert calling.cases > 0 and calling.why == ""
    assert made["made:Missing"].why == "no such runner in this engine"
    assert "ended before it had an answer" in made["made:Dying"].why


def test_a_record_is_kept_until_a_file_that_it_executed_changes(engine: Path) -> None:
    made = map_of(engine).record(NAMES[:1], jobs=1, told=str)[NAMES[0]]
    assert map_of(engine).kept(NAMES[0]) == (made, True)
    (engine / "engine" / "unused.py").write_text("")
    assert map_of(engine).kept(NAMES[0]) == (made, True)
    (engine / "engine" / "runner.py").write_text(f"{RUNNER}\n")
    assert map_of(engine).kept(NAMES[0]) == (made, False)


def test_a_damaged_record_is_none(engine: Path) -> None:
    map_of(engine).record(NAMES[:1], jobs=1, told=str)
    (path,) = (engine.parent / "cache" / "executed" / "engine").iterdir()
    for damaged in (b"", b"{", b"[]", b'{"format": 0}', b'{"target": "other", "files": {}}'):
        path.write_bytes(damaged)
        assert map_of(engine).kept(NAMES[0]) == (None, False), damaged


def test_a_target_without_a_record_has_none(engine: Path) -> None:
    assert map_of(engine).kept("made:Unknown") == (None, False)
    assert map_of(engine).record([], jobs=2, told=str) == {}
