"""`fuzzgraph gate` on a made-up engine in a repository: what a change breaks and mends."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

from fuzzgraph.cli.entry import run_command
from fuzzgraph.process.interpreter import module_command
from tests.cli.test_source import FAULT, made, write
from tests.unit.test_source_tree import git
from tests.unit.test_worktrees import everything

BUDGET = ("--time", "60s", "--examples", "20", "--seed", "1", "--target", "made:Made")


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A checkout on a branch that has left `main`."""
    top = made(tmp_path, monkeypatch)
    git(tmp_path, "init", "-q", "-b", "main", str(top))
    commit(top, "")
    git(top, "checkout", "-q", "-b", "topic")
    return top


def commit(top: Path, fault: str) -> None:
    write(top, fault)
    git(top, "add", ".")
    git(top, "commit", "-q", "--allow-empty", "-m", fault or "healthy")


def gate(*words: str) -> int:
    return run_command(["gate", "--source", "tree", "--base", "main", *words])


def record(tmp_path: Path) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((tmp_path / "out" / "gate.json").read_text())
    return found


@pytest.mark.slow
def test_a_change_that_brings_a_bug_is_condemned_and_nothing_is_left_behind(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write(tree, FAULT)
    before = everything(tree)
    assert gate(*BUDGET, "--out", "out") == 1
    assert "this change brings 1 finding" in capsys.readouterr().out
    (target,) = record(tmp_path)["targets"]
    (found,) = target["summary"]["findings"]
    assert found["finding"]["confirmed"] == "3/3" and found["finding"]["detail"]["on_base"] == "0/3"
    page = (tmp_path / "out" / "summary.md").read_text()
    assert page.startswith("# FuzzGraph: this change brings 1 finding")
    log = json.loads((tmp_path / "out" / "report.sarif").read_text())
    assert len(log["runs"][0]["results"]) == 1
    assert everything(tree) == before
    assert not [path for path in (tmp_path / "cache" / "worktrees").glob("*/*") if path.is_dir()]


@pytest.mark.slow
def test_a_change_that_mends_a_bug_is_told_so(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tree, "checkout", "-q", "main")
    commit(tree, FAULT)
    git(tree, "checkout", "-q", "-b", "mending")
    commit(tree, "")
    assert gate(*BUDGET, "--out", "out") == 0
    assert "this change mends 1 finding" in capsys.readouterr().out
    (target,) = record(tmp_path)["targets"]
    (mended,) = target["mended"]
    assert (mended["confirmed"], mended["on_head"]) == ("3/3", "0/3")
    assert (tmp_path / "out" / mended["case_path"]).is_file()


@pytest.mark.slow
def test_what_the_base_shows_as_well_is_not_blamed_on_the_change(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    git(tree, "checkout", "-q", "main")
    commit(tree, FAULT)
    git(tree, "checkout", "-q", "-b", "another")
    (tree / "python" / "engine" / "__init__.py").write_text(f"OTHER = 1\nFAULT = {FAULT!r}\n")
    assert gate(*BUDGET, "--out", "out") == 0
    assert "nothing new found; 1 finding of the base stands" in capsys.readouterr().out


def test_comments_alone_run_nothing(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree / "python" / "engine" / "__init__.py"
    path.write_text(f"# a comment\n{path.read_text()}")
    assert gate(*BUDGET, "--out", "out") == 0
    assert "no Python of the engine runs differently" in capsys.readouterr().out
    assert record(tmp_path)["targets"] == []


@pytest.mark.slow
def test_changed_statements_that_no_case_executes_are_told(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tree / "python" / "engine" / "__init__.py"
    path.write_text("FAULT = ''\n\n\ndef rare():\n    return 1\n")
    git(tree, "commit", "-qam", "a function that nobody calls")
    git(tree, "branch", "-f", "main", "topic")
    path.write_text("FAULT = str()\n\n\ndef rare():\n    size = 2\n    return size\n")
    assert gate(*BUDGET, "--out", "out") == 0
    printed = capsys.readouterr().out
    assert "the base is the commit that is checked out" in printed
    assert "nothing new found; 3 of 5 changed statements never executed" in printed
    found = record(tmp_path)
    assert found["never_ran"] == {"__init__.py": [5, 6]}
    assert found["never_ran_on_base"] == {"__init__.py": [5]}
    page = (tmp_path / "out" / "summary.md").read_text()
    assert "## Changed lines that no case executed" in page and "lines 5, 6" in page


def test_the_base_is_where_the_branch_left_it(tree: Path, tmp_path: Path) -> None:
    """What came to main since is not this change's."""
    here = git(tree, "rev-parse", "HEAD")
    git(tree, "checkout", "-q", "main")
    commit(tree, FAULT)
    git(tree, "checkout", "-q", "topic")
    assert gate(*BUDGET, "--out", "out") == 0
    assert record(tmp_path)["base"] == here
    assert record(tmp_path)["touched"] == []


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--base", "no-such"], "base='no-such' names no commit"),
        (["--source", "."], "has no package 'engine'"),
        (["--source", "plain"], "is not a git checkout, so it has no base"),
        (["--source", "absent"], "is not a folder"),
        (["--target", "no-such"], "target='no-such' is unknown"),
        (["--time", "soon"], "is not a valid duration"),
    ],
)
def test_what_cannot_be_judged_is_one_line_and_leaves_nothing(
    tree: Path, tmp_path: Path, words: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "plain" / "engine").mkdir(parents=True)
    (tmp_path / "plain" / "engine" / "__init__.py").touch()
    before = everything(tree)
    assert gate(*BUDGET, "--out", "out", *words) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "out").exists() and everything(tree) == before


def test_a_killed_gate_leaves_the_checkout_and_the_next_one_cleans_up(
    tree: Path, tmp_path: Path
) -> None:
    clean = everything(tree)
    write(tree, FAULT)
    before = everything(tree)
    words = ["gate", "--source", "tree", "--base", "main", *BUDGET, "--out", "killed"]
    process = subprocess.Popen(
        module_command("fuzzgraph", *words), stdout=subprocess.DEVNULL, env=dict(os.environ)
    )
    worktrees = tmp_path / "cache" / "worktrees"
    while not list(worktrees.glob("*/0/python/engine/__init__.py")):
        assert process.poll() is None
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    after = everything(tree)
    assert {path: after[path] for path in before} == before
    assert all(path.startswith(".git/worktrees/") for path in after.keys() - before.keys())
    write(tree, "")
    assert gate(*BUDGET, "--out", "out") == 0
    assert everything(tree) == clean


def test_a_gate_takes_the_settings_of_the_tree_and_chooses_among_its_targets(
    tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    file = tree / "fuzzgraph.toml"
    file.write_text('examples = 20\ntime = "60s"\nseed = 3\nledger = "l.toml"\n')
    (tree / "l.toml").write_text("")
    assert gate("--target", "made:Made", "--seed", "4", "--out", "out") == 0
    assert capsys.readouterr().out.splitlines()[0] == f"settings of {file}"
    asked = record(tmp_path)["spec"]
    assert (asked["settings"], asked["ledger"]) == (str(file), str(tree / "l.toml"))
    assert (asked["examples"], asked["seconds"], asked["seed"]) == (20, 60.0, 4)

    write(tree, FAULT)
    file.write_text('targets = ["sglang-fa3"]\n')
    registered = {"made": None, "other": None}
    monkeypatch.setattr("fuzzgraph.gate.run.targets_by_package", lambda: {"engine": registered})
    monkeypatch.setattr("fuzzgraph.gate.run.released_targets", lambda package: registered)
    assert gate("--out", "second") == 2
    assert "names 'sglang-fa3', which is no target of engine" in capsys.readouterr().err
    assert not (tmp_path / "second").exists()
    tried: list[str] = []

    def keep(known: object, names: list[str], *rest: object) -> dict[str, object]:
        tried.extend(names)
        return {}

    monkeypatch.setattr("fuzzgraph.gate.run.ExecutedMap.record", keep)
    file.write_text('targets = ["other"]\n')
    assert gate("--out", "third") == 0
    assert tried == ["other"]
