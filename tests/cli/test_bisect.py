"""`fuzzgraph bisect --source`: over the commits of an engine, from the command line."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzgraph.cli.entry import run_command
from fuzzgraph.worktrees import worktree
from tests.cli.test_source import FAULT, made
from tests.unit.test_source_tree import git
from tests.unit.test_worktrees import checkout_of, everything

CASE = Path(__file__).parents[2] / "corpus" / "faults" / f"{FAULT}.json"
COMMITS, UNABLE, BREAKS = 4, 2, 3


@pytest.fixture
def tree(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Four commits of an engine, the second not to be imported, the third broken, and one of the
    documentation after each; then an edit, another one staged, and a new file."""
    top = made(tmp_path, monkeypatch)
    engine = top / "python" / "engine" / "__init__.py"
    git(tmp_path, "init", "-q", "-b", "topic", str(top))
    for number in range(1, COMMITS + 1):
        fault = FAULT if number >= BREAKS else ""
        unable = "import missing_part\n" if number == UNABLE else ""
        engine.write_text(f"{unable}FAULT = {fault!r}\nNUMBER = {number}\n")
        commit(top, f"engine {number}")
        (top / "docs.txt").write_text(str(number))
        commit(top, f"docs {number}")
    engine.write_text("broken by an edit")
    (top / "docs.txt").write_text("staged")
    git(top, "add", "docs.txt")
    (top / "new.txt").write_text("not known")
    return top


def commit(top: Path, subject: str) -> None:
    git(top, "add", ".")
    git(top, "commit", "-qm", subject)


def words(*more: str) -> list[str]:
    ends = ["--source", "tree", "--good", "HEAD~6", "--bad", "HEAD"]
    return ["bisect", str(CASE), "--target", "made:Made", *ends, "--times", "1", *more]


def test_the_commit_that_brought_the_finding_is_named_and_one_that_does_not_open_skipped(
    tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(tree)
    assert run_command(words("--json")) == 1
    said = capsys.readouterr()
    assert said.err.startswith(f"{COMMITS} commits to ask, of 7: those that change python/engine")
    assert "; what is not committed is left out; at most 4 runs if each can" in said.err
    found = json.loads(said.out)["bisection"]
    answers = {one["subject"]: one for one in found["answers"]}
    verdicts = {subject: one["verdict"] for subject, one in answers.items()}
    assert verdicts == {
        "docs 1": "good",
        "engine 2": "skipped",
        "engine 3": "bad",
        "engine 4": "bad",
    }
    assert "missing_part" in answers["engine 2"]["why"]
    (boundary,) = found["broken"]
    assert boundary["after"] == git(tree, "rev-parse", "HEAD~3")
    assert boundary["before"] == git(tree, "rev-parse", "HEAD~6")
    assert boundary["skipped"] == [git(tree, "rev-parse", "HEAD~5")]
    assert everything(tree) == before
    assert not list((tmp_path / "cache" / "worktrees").glob("*/[0-9]*"))


KILLS_ITS_PARENT = """
import os, signal
FAULT = ""
os.kill(os.getppid(), signal.SIGKILL)
"""


def test_a_kill_leaves_the_checkout_as_it_was_and_the_next_run_removes_its_worktree(
    tree: Path, tmp_path: Path
) -> None:
    engine = tree / "python" / "engine" / "__init__.py"
    engine.write_text(KILLS_ITS_PARENT)
    git(tree, "commit", "-qam", "kills")
    before = everything(tree)
    command = [sys.executable, "-m", "fuzzgraph", *words()]
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join([str(tmp_path), *sys.path]))
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == -9, done.stderr
    (left,) = (tmp_path / "cache" / "worktrees").glob("*/[0-9]*")
    changed = {path for path, digest in everything(tree).items() if before.get(path) != digest}
    assert changed and all(path.startswith(".git/worktrees/") for path in changed)
    with worktree(checkout_of(tree), git(tree, "rev-parse", "HEAD~2")):
        pass
    assert not left.exists() and everything(tree) == before


@pytest.mark.parametrize(
    ("more", "message"),
    [
        (["--releases", "1.0,1.1"], "name one of them, releases or a checkout"),
        (["--good", "nowhere"], "--good='nowhere' names no commit of"),
        (["--good", "HEAD"], "are both commit"),
        (["--source", "."], "has no package 'engine'"),
        (["--target", "builtin"], "target 'builtin' is FuzzGraph's own"),
        (["--target", "sglang-fa3"], "has no package 'sglang'"),
        (["--isolation", "off"], "runs in a process of its own only"),
    ],
)
def test_a_wrong_call_is_one_line_and_leaves_nothing(
    more: list[str], message: str, tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = everything(tree)
    assert run_command(words(*more)) == 2
    (line,) = [one for one in capsys.readouterr().err.splitlines() if "UsageError" in one]
    assert message in line
    assert everything(tree) == before
    assert not list((tmp_path / "cache").glob("worktrees/*/[0-9]*"))


def test_a_target_without_releases_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["bisect", str(CASE), "--good", "1", "--bad", "2"]) == 2
    assert "target='builtin' belongs to no package with releases" in capsys.readouterr().err
