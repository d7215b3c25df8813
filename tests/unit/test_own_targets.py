"""A target of one's own is found again by workers, scripts and the commands that are printed."""

from __future__ import annotations

import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import fuzzgraph
from fuzzgraph.errors import UsageError
from fuzzgraph.process.interpreter import import_path, module_command, script_command
from fuzzgraph.run.events import Setup
from fuzzgraph.run_options import replay_command
from fuzzgraph.targets.own import import_root, open_own

WHOSE = "import fuzzgraph, sys\nprint(fuzzgraph.__file__)\nprint(*sys.argv[1:])\n"


def said(command: list[str], folder: Path) -> list[str]:
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    return (done.stdout or done.stderr).splitlines()


@pytest.fixture
def other_clone(tmp_path: Path) -> Path:
    """A folder in which plain Python would find another FuzzGraph."""
    (tmp_path / "fuzzgraph").mkdir()
    (tmp_path / "fuzzgraph" / "__init__.py").write_text("")
    (tmp_path / "whose.py").write_text(WHOSE)
    return tmp_path


@pytest.fixture
def engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, which holds an engine in a package."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [entry for entry in sys.path if entry])
    (tmp_path / "engine_of_theirs").mkdir()
    (tmp_path / "engine_of_theirs" / "__init__.py").write_text(
        "from fuzzgraph.targets.builtin import BuiltinTarget as make\n"
    )
    (tmp_path / "engine_of_theirs" / "target.py").write_text(
        "from fuzzgraph.targets.builtin import BuiltinTarget as make\n"
    )
    yield tmp_path
    for name in ("engine_of_theirs", "engine_of_theirs.target"):
        sys.modules.pop(name, None)


def test_a_process_of_ours_runs_our_fuzzgraph_in_another_clone_too(
    other_clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert said([sys.executable, "-m", "whose"], other_clone)[0].startswith(str(other_clone))
    monkeypatch.syspath_prepend(other_clone)
    for command in (module_command("whose"), script_command(other_clone / "whose.py")):
        assert said([*command, "a b"], other_clone) == [fuzzgraph.__file__, "a b"]


def test_a_process_of_ours_imports_from_our_folders_alone(other_clone: Path) -> None:
    (line,) = said(module_command("whose"), other_clone)[-1:]
    assert "No module named whose" in line


@pytest.mark.parametrize("module", ["engine_of_theirs", "engine_of_theirs.target"])
def test_the_folder_of_a_target_is_kept_as_a_whole_path(
    engine: Path, monkeypatch: pytest.MonkeyPatch, module: str
) -> None:
    assert open_own(f"{module}:make").name == "builtin"
    monkeypatch.chdir("/")
    assert import_root(f"{module}:make") == str(engine)
    assert str(engine) in import_path()
    assert all(Path(entry).is_absolute() for entry in import_path())


@pytest.mark.parametrize("name", ["builtin", "never_imported:make", "pytest:main", "sys:exit"])
def test_what_is_known_or_installed_or_not_there_has_no_folder_of_its_own(name: str) -> None:
    assert import_root(name) == ""


def test_the_replay_command_works_where_it_is_printed(
    engine: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    setup = Setup(target="engine_of_theirs:make")
    open_own(setup.target)
    line = "fuzzgraph replay r/case.json --target engine_of_theirs:make"
    assert replay_command("r/case.json", setup) == line
    monkeypatch.chdir("/")
    line = f"cd {shlex.quote(str(engine))} && {line.replace('r/case', '/r/case')}"
    assert replay_command("r/case.json", setup) == line
    assert replay_command("a b.json", Setup()) == "fuzzgraph replay 'a b.json' --target builtin"


def test_a_target_that_cannot_be_imported_is_refused_in_one_line(engine: Path) -> None:
    with pytest.raises(UsageError, match="cannot be opened.*Write module:factory"):
        open_own("engine_of_theirs:nothing")
