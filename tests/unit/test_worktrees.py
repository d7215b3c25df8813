"""Worktrees of other commits come and go, and the owner's checkout stays as it was."""

from __future__ import annotations

import hashlib
import subprocess
import sys
from pathlib import Path

import pytest

from fuzzgraph.checkout import Checkout
from fuzzgraph.errors import UsageError
from fuzzgraph.source_tree import find_tree
from fuzzgraph.worktrees import commit_of, merge_base, worktree
from tests.unit.test_source_tree import git, write


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two commits of an engine, an edit in the working tree, another one staged, and a hook."""
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "cache"))
    top = tmp_path / "repository"
    write(top / "python" / "engine", "ONE = 1\n")
    git(top.parent, "init", "-q", "-b", "main", str(top))
    for text in ("ONE = 1\n", "ONE = 2\n"):
        write(top / "python" / "engine", text)
        (top / "other.txt").write_text(text)
        git(top, "add", ".")
        git(top, "commit", "-qm", text)
    hook = top / ".git" / "hooks" / "post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/hooked\n")
    hook.chmod(0o755)
    write(top / "python" / "engine", "ONE = 3\n")
    (top / "other.txt").write_text("staged")
    git(top, "add", "other.txt")
    return top


def checkout_of(top: Path) -> Checkout:
    found = find_tree(str(top), "engine").checkout
    assert found is not None
    return found


def everything(folder: Path) -> dict[str, str]:
    """Digest of each file of a checkout, git's own included."""
    files = [path for path in sorted(folder.rglob("*")) if path.is_file()]
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def test_it_holds_the_one_folder_as_the_commit_has_it(repository: Path, tmp_path: Path) -> None:
    before = everything(repository)
    checkout = checkout_of(repository)
    commit = commit_of(checkout, "HEAD~1", "--base")
    with worktree(checkout, commit) as folder:
        assert (folder / "__init__.py").read_text() == "ONE = 1\n"
        assert find_tree(str(folder.parents[1]), "engine").identity == commit
        assert not (folder.parents[1] / "other.txt").exists()
    assert not folder.exists()
    assert everything(repository) == before
    assert not (tmp_path / "hooked").exists()


def test_two_at_a_time_lie_apart(repository: Path) -> None:
    checkout = checkout_of(repository)
    commits = [commit_of(checkout, ref, "--base") for ref in ("HEAD", "HEAD~1")]
    with worktree(checkout, commits[0]) as one, worktree(checkout, commits[1]) as two:
        assert [(folder / "__init__.py").read_text() for folder in (one, two)] == [
            "ONE = 2\n",
            "ONE = 1\n",
        ]


KILLED = """
import os, signal, sys
from fuzzgraph.worktrees import worktree
from tests.unit.test_worktrees import checkout_of
from pathlib import Path
with worktree(checkout_of(Path(sys.argv[1])), sys.argv[2]) as folder:
    print(folder, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_what_a_killed_run_left_is_gone_with_the_next_one(repository: Path) -> None:
    before = everything(repository)
    checkout = checkout_of(repository)
    commit = commit_of(checkout, "HEAD", "--base")
    command = [sys.executable, "-c", KILLED, str(repository), commit]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    left = Path(done.stdout.strip())
    assert done.returncode == -9 and left.is_dir()
    changed = {
        path for path, digest in everything(repository).items() if before.get(path) != digest
    }
    assert changed and all(path.startswith(".git/worktrees/") for path in changed)
    (left / "__init__.py").write_text("ONE = 'left over'\n")
    with worktree(checkout, commit) as folder:
        assert (folder / "__init__.py").read_text() == "ONE = 2\n"
    assert not left.exists() and everything(repository) == before


def test_a_worktree_of_the_owners_whose_folder_is_away_is_left_alone(
    repository: Path, tmp_path: Path
) -> None:
    git(repository, "worktree", "add", "-q", str(tmp_path / "theirs"))
    (tmp_path / "theirs").rename(tmp_path / "away")
    before = everything(repository)
    checkout = checkout_of(repository)
    with worktree(checkout, commit_of(checkout, "HEAD", "--base")):
        pass
    assert everything(repository) == before


def test_a_commit_that_is_not_there_is_refused_with_the_way_out(
    repository: Path, tmp_path: Path
) -> None:
    checkout = checkout_of(repository)
    for ref in ("no-such-branch", "--all", "HEAD~9"):
        with pytest.raises(UsageError, match="names no commit"):
            commit_of(checkout, ref, "--base")
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), str(tmp_path / "shallow"))
    shallow = checkout_of(tmp_path / "shallow")
    with pytest.raises(UsageError, match="is not in this shallow clone. Fetch it: git fetch"):
        commit_of(shallow, "HEAD~1", "--base")


def test_lines_without_a_common_commit_are_refused(repository: Path) -> None:
    checkout = checkout_of(repository)
    tree = git(repository, "rev-parse", "HEAD^{tree}")
    other = git(repository, "commit-tree", "-m", "apart", tree)
    with pytest.raises(UsageError, match="have no commit in common here"):
        merge_base(checkout, other, "--base")
    assert merge_base(checkout, "HEAD~1", "--base") == commit_of(checkout, "HEAD~1", "--base")


def test_a_commit_without_the_folder_is_one_clear_line(repository: Path) -> None:
    git(repository, "checkout", "-q", "--orphan", "empty")
    git(repository, "rm", "-rqf", ".")
    git(repository, "commit", "-q", "--allow-empty", "-m", "nothing")
    git(repository, "checkout", "-q", "-f", "main")
    checkout = checkout_of(repository)
    commit = commit_of(checkout, "empty", "--base")
    with (
        pytest.raises(UsageError, match="has no folder 'python/engine'"),
        worktree(checkout, commit),
    ):
        pass
