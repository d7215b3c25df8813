"""A tree of sources is found, told from any other, and left as it is."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest

from fuzzgraph.errors import UsageError
from fuzzgraph.source_tree import find_tree, require_identity


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", str(folder), "-c", "user.name=x", "-c", "user.email=x@example.org"]
    return subprocess.run(
        [*command, *words], check=True, capture_output=True, text=True
    ).stdout.strip()


def write(folder: Path, text: str = "ONE = 1\n") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "__init__.py").write_text(text)


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    top = tmp_path / "checkout"
    write(top / "python" / "engine")
    git(top, "init", "-q", "-b", "main")
    git(top, "add", ".")
    git(top, "commit", "-qm", "one")
    return top


@pytest.mark.parametrize("below", ["", "python", "src"])
def test_the_package_is_found_where_repositories_keep_it(tmp_path: Path, below: str) -> None:
    write(tmp_path / below / "engine")
    assert find_tree(str(tmp_path), "engine").root == tmp_path / below


def test_a_checkout_is_its_commit_and_where_the_package_lies(checkout: Path) -> None:
    tree = find_tree(str(checkout), "engine")
    assert tree.identity == git(checkout, "rev-parse", "HEAD")
    assert tree.checkout is not None
    assert (tree.checkout.branch, tree.checkout.below) == ("main", "python/engine")
    assert find_tree(str(checkout / "python"), "engine") == tree


def test_each_edit_is_another_tree_and_undoing_it_gives_the_first_back(checkout: Path) -> None:
    package = checkout / "python" / "engine"
    seen = [find_tree(str(checkout), "engine").identity]
    for edit in (
        lambda: write(package, "ONE = 2\n"),
        lambda: write(package, "ONE = 3\n"),
        lambda: (package / "new.py").write_text("TWO = 2\n"),
        lambda: (package / "new.py").write_text("TWO = 3\n"),
        lambda: git(checkout, "add", "."),
        lambda: (package / "__init__.py").unlink(),
    ):
        edit()
        if (package / "__init__.py").exists():
            seen.append(find_tree(str(checkout), "engine").identity)
    assert len(set(seen)) == 5 + 1
    assert all(identity.startswith(seen[0]) for identity in seen)
    git(checkout, "reset", "-q", "--hard")
    assert find_tree(str(checkout), "engine").identity == seen[0]


def test_what_lies_beside_the_package_or_is_ignored_is_no_edit(checkout: Path) -> None:
    (checkout / ".gitignore").write_text("*.so\n")
    git(checkout, "add", ".")
    git(checkout, "commit", "-qm", "two")
    before = find_tree(str(checkout), "engine").identity
    (checkout / "notes.txt").write_text("x")
    (checkout / "python" / "engine" / "compiled.so").write_text("x")
    assert find_tree(str(checkout), "engine").identity == before


def test_looking_at_a_checkout_does_not_even_refresh_its_index(checkout: Path) -> None:
    (checkout / "python" / "engine" / "__init__.py").touch()  # git would note the new time
    before = (checkout / ".git" / "index").read_bytes()
    find_tree(str(checkout), "engine")
    assert (checkout / ".git" / "index").read_bytes() == before


def test_an_unpacked_wheel_is_known_by_its_files_wherever_it_lies(tmp_path: Path) -> None:
    write(tmp_path / "one" / "engine")
    first = find_tree(str(tmp_path / "one"), "engine").identity
    assert first.startswith("files:")
    shutil.copytree(tmp_path / "one", tmp_path / "two")
    assert find_tree(str(tmp_path / "two"), "engine").identity == first
    write(tmp_path / "two" / "engine", "ONE = 2\n")
    assert find_tree(str(tmp_path / "two"), "engine").identity != first


def test_a_wheel_in_an_ignored_folder_of_a_checkout_is_no_part_of_it(checkout: Path) -> None:
    (checkout / ".gitignore").write_text("wheels\n")
    write(checkout / "wheels" / "engine")
    assert find_tree(str(checkout / "wheels"), "engine").checkout is None


def test_an_editable_installation_leads_to_its_checkout(checkout: Path, tmp_path: Path) -> None:
    packages = tmp_path / "site-packages"
    info = packages / "engine-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: engine\nVersion: 1.0\n")
    record = {"url": (checkout / "python").as_uri(), "dir_info": {"editable": True}}
    (info / "direct_url.json").write_text(json.dumps(record))
    assert find_tree(str(packages), "engine") == find_tree(str(checkout), "engine")


def test_a_tree_is_the_one_that_is_asked_for_or_refused_with_the_way_there(checkout: Path) -> None:
    tree = find_tree(str(checkout), "engine")
    for fitting in ("", "any", tree.identity):
        require_identity(tree, fitting)
    with pytest.raises(UsageError, match="is asked for .git checkout 000000000000."):
        require_identity(tree, "0" * 40)
    with pytest.raises(UsageError, match="has changes that were not committed"):
        require_identity(tree, f"{tree.identity}+0123456789ab")


def test_what_is_no_tree_of_the_engine_is_one_clear_line(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "other" / "engine").mkdir(parents=True)
    wrong = {
        str(tmp_path / "none"): "is not a folder",
        str(checkout / ".git"): "has no package 'engine'",
        str(tmp_path / "other"): "a submodule that was not fetched",
    }
    for source, message in wrong.items():
        with pytest.raises(UsageError, match=message):
            find_tree(source, "engine")
    with pytest.raises(UsageError, match="has no package 'another' .looked for another, python/"):
        find_tree(str(checkout), "another")
    (checkout / "docs").mkdir()
    with pytest.raises(UsageError, match=f"Name the root of the checkout: {checkout}"):
        find_tree(str(checkout / "docs"), "engine")
