"""`--source`: an engine's working tree under test, from the command line to the exported files."""

from __future__ import annotations

import json
import os
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

import fuzzgraph
from fuzzgraph.cli.entry import run_command
from tests.unit.test_source_tree import git

TARGET = """
from fuzzgraph.targets.builtin import BuiltinTarget
from fuzzgraph.targets.builtin.faults import FAULTS

class Made(BuiltinTarget):
    package = "engine"
    engine_packages = ("engine", "fuzzgraph.targets.builtin")
    isolated = True

    def load(self):
        import engine
        faults = {fault.name: fault.components for fault in FAULTS}
        self.components = faults.get(engine.FAULT, self.components)
"""
FAULT = "sglang-pr-22598-indptr-at-pool-size"


def made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of an engine without any code; its target lies in the current folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "cache"))
    (tmp_path / "made.py").write_text(TARGET)
    top = tmp_path / "tree"
    (top / "python" / "engine").mkdir(parents=True)
    return top


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout of an engine with a planted fault."""
    top = made(tmp_path, monkeypatch)
    write(top, FAULT)
    git(top, "init", "-q", "-b", "topic")
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    return top


def write(top: Path, fault: str) -> None:
    (top / "python" / "engine" / "__init__.py").write_text(f"FAULT = {fault!r}\n")


def run(*words: str) -> int:
    return run_command([*words])


def found(capsys: pytest.CaptureFixture[str]) -> dict[str, object]:
    """Run on the tree, and the record of the one finding."""
    words = ["--time", "60s", "--findings", "1", "--seed", "1", "--out", "out", "--json"]
    assert run("run", "--target", "made:Made", "--source", "tree", *words) == 1
    record: dict[str, object] = json.loads(capsys.readouterr().out)
    return record


@pytest.mark.slow
def test_a_finding_in_a_tree_says_which_tree_and_is_found_in_no_other(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    commit = git(tree, "rev-parse", "HEAD")
    record = found(capsys)
    assert record["spec"]["setup"]["tree"] == commit  # type: ignore[index]
    environment = record["environment"]
    assert isinstance(environment, dict)
    assert (environment["engine_commit"], environment["engine_branch"]) == (commit, "topic")
    assert environment["engine_below"] == "python/engine"
    (folder,) = (tmp_path / "out" / "findings").iterdir()
    assert commit in (folder / "issue.md").read_text()
    assert f"tree at commit {commit[:12]}" in (folder / "repro.py").read_text()
    replay = ["replay", str(folder / "case.json"), "--target", "made:Made", "--source", "tree"]
    assert run(*replay, "--tree", commit) == 1

    write(tree, "")
    capsys.readouterr()
    assert run(*replay, "--tree", commit) == 2
    assert "and " + commit + " is asked for" in capsys.readouterr().err
    assert run(*replay, "--tree", "any") == 0
    assert not list(tree.rglob("__pycache__"))
    assert git(tree, "status", "--porcelain") == "M python/engine/__init__.py"


@pytest.mark.slow
def test_an_exported_test_takes_the_receivers_tree_and_refuses_another(
    tree: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    found(capsys)
    (folder,) = (tmp_path / "out" / "findings").iterdir()
    (exported,) = folder.glob("test_*.py")
    moved = tmp_path / "elsewhere"
    tree.rename(moved)
    monkeypatch.syspath_prepend(str(tmp_path))

    def run_exported() -> None:
        (test,) = (
            value
            for name, value in runpy.run_path(str(exported)).items()
            if name.startswith("test_")
        )
        test()

    with pytest.raises(fuzzgraph.UsageError, match="is not a folder"):
        run_exported()
    monkeypatch.setenv("FUZZGRAPH_SOURCE", str(moved))
    with pytest.raises(fuzzgraph.FindingError):
        run_exported()
    write(moved, "")
    with pytest.raises(fuzzgraph.UsageError, match="is asked for"):
        run_exported()
    path = os.pathsep.join([str(tmp_path), *sys.path])
    environment = dict(os.environ, PYTHONPATH=path, FUZZGRAPH_TREE="any")
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(exported)]
    assert subprocess.run(command, env=environment, check=False).returncode == 0


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--release", "1.0"], "name one of them, a tree or a release"),
        (["--tree", "1.0"], "is not the identity of a tree"),
        (["--target", "builtin"], "target 'builtin' is FuzzGraph's own"),
        (["--target", "sglang-fa3"], "has no package 'sglang'"),
    ],
)
def test_what_does_not_go_together_is_one_line(
    tree: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    given = ["--target", "made:Made", "--source", "tree", *words]
    assert run("run", *given) == 2
    assert message in capsys.readouterr().err


def test_a_tree_without_a_source_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert run("run", "--target", "sglang-fa3", "--tree", "any") == 2
    assert "Name the tree with --source" in capsys.readouterr().err
