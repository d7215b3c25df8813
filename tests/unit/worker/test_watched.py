"""Watched statements of an engine are noted, and nothing else of it is different."""

from __future__ import annotations

import importlib
import inspect
import sys
import traceback
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType

import pytest

from fuzzgraph.worker.bytecode import keep_bytecode
from fuzzgraph.worker.watched import Watched

SOURCE = '''"""Docs."""
from __future__ import annotations

def prepare(rows):
    """Docs of prepare."""
    if rows > 2:
        rows = rows - 1
    elif rows:
        return [
            one for one in range(rows)
        ]
    else:
        raise ValueError(rows)
    return rows

SIZE = prepare(3)
'''


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[ModuleType, Watched]]:
    """A module whose statements are watched from line 6 on."""
    folder = tmp_path / "tree"
    (folder / "watched_engine").mkdir(parents=True)
    path = folder / "watched_engine" / "__init__.py"
    path.write_text(SOURCE)
    watched = Watched({str(path): (6, 7, 8, 9, 13, 14, 16)})
    monkeypatch.setattr(sys, "path_hooks", list(sys.path_hooks))
    monkeypatch.syspath_prepend(str(folder))
    keep_bytecode([str(folder)], tmp_path / "bytecode", watched)
    sys.path_importer_cache.pop(str(folder), None)
    yield importlib.import_module("watched_engine"), watched
    del sys.modules["watched_engine"]


def test_each_is_told_once_by_its_first_line(engine: tuple[ModuleType, Watched]) -> None:
    module, watched = engine
    file = module.__file__
    assert watched.fresh() == {file: (6, 7, 14, 16)}  # at import
    assert module.prepare(1) == [0]
    assert watched.fresh() == {file: (8, 9)}
    module.prepare(3)
    assert watched.fresh() == {}


def test_lines_texts_and_docstrings_stay_as_they_are(engine: tuple[ModuleType, Watched]) -> None:
    module, _ = engine
    assert (module.__doc__, module.prepare.__doc__) == ("Docs.", "Docs of prepare.")
    assert inspect.getsource(module.prepare) in SOURCE
    with pytest.raises(ValueError) as caught:
        module.prepare(0)
    assert traceback.extract_tb(caught.tb)[-1].lineno == 13


def test_its_bytecode_is_kept_for_nobody(
    engine: tuple[ModuleType, Watched], tmp_path: Path
) -> None:
    assert not list(tmp_path.rglob("*.pyc"))
