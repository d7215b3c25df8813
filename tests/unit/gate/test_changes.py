"""What a change touches: files that run differently, and the functions in them."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.gate.changes import MODULE, Changes, read_changes
from fuzzgraph.source_tree import find_tree
from fuzzgraph.worktrees import commit_of, worktree
from tests.unit.test_source_tree import git

BASE = '''import triton
SIZE = 1


class Runner:
    def prepare(self, rows):
        """Docs."""
        count = rows + 1
        return count

    def replay(self):
        return [one for one in self.rows]


@triton.jit
def kernel(x):
    y = x
    return y
'''


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "cache"))
    top = tmp_path / "checkout"
    (top / "engine").mkdir(parents=True)
    (top / "engine" / "__init__.py").touch()
    (top / "engine" / "runner.py").write_text(BASE)
    git(tmp_path, "init", "-q", str(top))
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    return top


def changes(top: Path) -> Changes:
    tree = find_tree(str(top), "engine")
    assert tree.checkout is not None
    commit = commit_of(tree.checkout, "HEAD", "base")
    with worktree(tree.checkout, commit) as base:
        return read_changes(tree.checkout, base, top / "engine", commit)


def edited(top: Path, old: str, new: str) -> Changes:
    path = top / "engine" / "runner.py"
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    return changes(top)


@pytest.mark.parametrize(
    ("old", "new", "functions", "kernels"),
    [
        ("rows + 1", "rows + 2", {"Runner.prepare"}, False),
        ("self.rows]", "self.others]", {"Runner.replay"}, False),
        ("SIZE = 1", "SIZE = 2", {MODULE}, False),
        ("    y = x\n", "    y = x + 1\n", {"kernel"}, True),
        ("        return count\n", "", {"Runner.prepare"}, False),
        ("SIZE = 1", "SIZE = 1\n\n\ndef more():\n    return 2", {MODULE, "more"}, False),
    ],
)
def test_the_functions_around_changed_lines_are_touched(
    checkout: Path, old: str, new: str, functions: set[str], kernels: bool
) -> None:
    (file,) = edited(checkout, old, new).files
    assert (file.path, set(file.functions), file.kernels) == ("runner.py", functions, kernels)


def test_comments_and_blank_lines_are_no_change_of_the_code(checkout: Path) -> None:
    found = edited(checkout, "SIZE = 1", "# one\n\n\nSIZE = 1  # a size")
    assert found == Changes(same=("runner.py",))


def test_a_renamed_local_variable_is_one(checkout: Path) -> None:
    (file,) = edited(checkout, "count", "number").files
    assert file.functions == {"Runner.prepare"}


def test_new_and_removed_files_and_those_that_are_no_python_are_told(checkout: Path) -> None:
    (checkout / "engine" / "new.py").write_text("ONE = 1\n")
    (checkout / "engine" / "kernel.cu").write_text("x")
    (checkout / "engine" / "runner.py").unlink()
    (checkout / "beside.py").write_text("ONE = 1\n")
    found = changes(checkout)
    assert [file.path for file in found.files] == ["new.py", "runner.py"]
    assert found.files[1].functions == {
        MODULE, "Runner.prepare", "Runner.replay", "kernel",
    }  # fmt: skip
    assert (found.other, found.same) == (("kernel.cu",), ())


def test_a_file_that_is_no_python_any_more_runs_differently(checkout: Path) -> None:
    (file,) = edited(checkout, "def replay", "def replay(").files
    assert "Runner.replay" in file.functions


@pytest.mark.parametrize(
    ("old", "new", "added", "removed"),
    [
        ("rows + 1", "rows + 2", (8,), (8,)),
        ("        return count\n", "", (), (9,)),
        ("SIZE = 1\n", "SIZE = 1\nMORE = (\n    2\n)\n", (3,), ()),
        ("    y = x\n", "    y = x + 1\n", (), ()),  # of a kernel, which Python never executes
        (
            "        return count\n",
            "        # why\n        return count\n        pass\n",
            (11,),
            (),
        ),
    ],
)
def test_the_statements_of_both_sides_are_told_by_their_first_lines(
    checkout: Path, old: str, new: str, added: tuple[int, ...], removed: tuple[int, ...]
) -> None:
    (file,) = edited(checkout, old, new).files
    assert (file.added, file.removed) == (added, removed)
