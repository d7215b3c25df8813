"""Which commits of a checkout a bisection asks, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pytest

from fuzzgraph.bisect import Line, bisect, commit_line, release_line
from fuzzgraph.campaign import Opened
from fuzzgraph.errors import UsageError
from fuzzgraph.run.spec import Setup
from fuzzgraph.source_tree import find_tree
from tests.fakes import FakeRunner, case, finding, opener
from tests.unit.test_source_tree import git

TARGET = """
from fuzzgraph.targets.builtin import BuiltinTarget

class Made(BuiltinTarget):
    package = "engine"
"""


@pytest.fixture
def repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Commits on main, of which every second one changes the engine: e1 d1 e2 d2 e3 d3."""
    monkeypatch.setenv("FUZZGRAPH_CACHE", str(tmp_path / "cache"))
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bisected.py").write_text(TARGET)
    top = tmp_path / "repository"
    git(tmp_path, "init", "-q", "-b", "main", str(top))
    for number in (1, 2, 3):
        engine(top, number)
        commit(top, f"d{number}", "docs.txt")
    return top


def commit(top: Path, name: str, *files: str) -> None:
    for file in files:
        (top / file).parent.mkdir(parents=True, exist_ok=True)
        (top / file).write_text(f"NAME = {name!r}\n")
    git(top, "add", ".")
    git(top, "commit", "-qm", name)
    git(top, "tag", name)


def engine(top: Path, number: int) -> None:
    commit(top, f"e{number}", "python/engine/__init__.py")


def walk(top: Path, good: str, bad: str) -> Line:
    return commit_line(Setup(target="bisected:Made", source=str(top)), good, bad)


def subjects(line: Line) -> list[str]:
    return [point.subject for point in line.points]


def test_only_commits_that_change_the_package_are_asked_the_older_end_besides(
    repository: Path,
) -> None:
    line = walk(repository, "d1", "HEAD")
    assert subjects(line) == ["d1", "e2", "e3"]
    assert line.bad_is_last
    assert line.points[0].name == git(repository, "rev-parse", "d1")


def test_a_finding_that_went_is_walked_the_same_way(repository: Path) -> None:
    line = walk(repository, "main", "e1")
    assert subjects(line) == ["e1", "e2", "e3"]
    assert not line.bad_is_last


def test_each_is_a_tree_with_the_commit_for_its_identity(repository: Path) -> None:
    line = walk(repository, "e1", "e3")
    for point in line.points:
        with line.setup_at(point) as setup:
            tree = find_tree(setup.source, "engine")
            assert tree.identity == setup.tree == point.name
            assert f"NAME = {point.subject!r}\n" == (tree.root / "engine/__init__.py").read_text()
        assert not Path(setup.source).exists()


def test_a_commit_without_the_package_is_skipped_and_named(
    repository: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    git(repository, "rm", "-rq", "python")
    git(repository, "commit", "-qm", "away")
    engine(repository, 4)

    def open_setup(setup: Setup) -> Opened:
        text = Path(setup.source, "engine", "__init__.py").read_text()
        runner = FakeRunner(lambda _: (finding(),) if "e4" in text else ())
        return opener(runner)(setup)

    monkeypatch.setattr("fuzzgraph.open_target.open_setup", open_setup)
    found = bisect(case(2), walk(repository, "e3", "main"))
    (boundary,) = found.broken
    names = [git(repository, "rev-parse", ref) for ref in ("e3", "main", "main~1")]
    assert [boundary.before, boundary.after, *boundary.skipped] == names
    assert "has no folder 'python/engine'" in found.answers[1].why


def test_a_merge_is_one_commit_with_all_that_it_brought(repository: Path) -> None:
    git(repository, "checkout", "-qb", "topic", "e3")
    engine(repository, 4)
    engine(repository, 5)
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge of topic", "topic")
    line = walk(repository, "e2", "main")
    assert subjects(line) == ["e2", "e3", "merge of topic"]
    assert "first parents only" in line.about
    assert subjects(walk(repository, "e3", "topic")) == ["e3", "e4", "e5"]
    assert subjects(walk(repository, "e4", "main")) == ["e4", "merge of topic"]


def test_a_merge_that_changes_nothing_against_its_first_parent_counts_from_inside_the_branch(
    repository: Path,
) -> None:
    git(repository, "checkout", "-qb", "old", "e2")
    commit(repository, "o", "old.txt")
    git(repository, "checkout", "-q", "main")
    git(repository, "merge", "-q", "--no-ff", "-m", "merge of old", "old")
    assert subjects(walk(repository, "o", "main")) == ["o", "merge of old"]
    assert subjects(walk(repository, "e2", "main")) == ["e2", "e3"]


def test_the_subject_of_a_commit_cannot_draw_on_a_terminal(repository: Path) -> None:
    (repository / "python/engine/__init__.py").write_text("NAME = 9\n")
    git(repository, "commit", "-qam", "red \x1b[31m and\ttabs " + "long " * 40)
    subject = walk(repository, "e1", "main").points[-1].subject
    assert subject.startswith("red \\x1b[31m and\ttabs long") and len(subject) == 72


def test_ends_on_two_branches_are_refused_with_the_commit_where_they_part(
    repository: Path,
) -> None:
    git(repository, "checkout", "-qb", "topic", "e2")
    engine(repository, 4)
    parted = git(repository, "rev-parse", "e2")[:12]
    with pytest.raises(UsageError, match=f"lie on two branches, which part at {parted}"):
        walk(repository, "main", "topic")


@pytest.mark.parametrize(
    ("good", "bad", "said"),
    [
        ("e1", "nowhere", "--bad='nowhere' names no commit"),
        ("--all", "e1", "--good='--all' names no commit"),
        ("d3", "main", "--good and --bad are both commit"),
        ("e2", "d2", "no commit between --good=e2 and --bad=d2 changes python/engine"),
    ],
)
def test_ends_that_make_no_line_are_refused(
    repository: Path, good: str, bad: str, said: str
) -> None:
    with pytest.raises(UsageError, match=said):
        walk(repository, good, bad)


def test_lines_without_a_common_commit_are_refused(repository: Path) -> None:
    tree = git(repository, "rev-parse", "HEAD^{tree}")
    apart = git(repository, "commit-tree", "-m", "apart", tree)
    with pytest.raises(UsageError, match="have no commit in common here"):
        walk(repository, apart, "main")


def test_a_shallow_clone_without_an_end_says_what_to_fetch(
    repository: Path, tmp_path: Path
) -> None:
    git(tmp_path, "clone", "-q", "--depth", "1", repository.as_uri(), str(tmp_path / "shallow"))
    with pytest.raises(UsageError, match="not in this shallow clone. Fetch it: git fetch"):
        walk(tmp_path / "shallow", "e1", "main")


def test_a_folder_outside_git_is_refused(repository: Path, tmp_path: Path) -> None:
    (repository / ".git").rename(tmp_path / "away")
    with pytest.raises(UsageError, match="is no git checkout with commits"):
        walk(repository, "e1", "e3")


def test_a_target_of_ones_own_is_bisected_over_the_releases_of_its_package(
    repository: Path,
) -> None:
    line = release_line(Setup(target="bisected:Made"), "1.2", "1.0", ["1.0", "1.1", "1.2"])
    with line.setup_at(line.points[1]) as setup:
        assert (setup.target, setup.release) == ("bisected:Made", "1.1")
    assert not line.bad_is_last and line.about == "releases of engine, 1.0 to 1.2"
