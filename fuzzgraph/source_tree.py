"""A tree of an engine's sources as an engine under test: a checkout, or an unpacked wheel.

Nothing is imported, built or written. Whoever replays a finding has to know which code it was found
in, so a tree has an identity: the commit and a digest of what was changed since, or, outside git,
a digest of all Python files. The branch and the place on this machine are no part of it.
"""

from __future__ import annotations

from dataclasses import dataclass
from importlib.metadata import distributions
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from fuzzgraph.checkout import Checkout, GitFailed, digest_of_files, git_line, read_checkout
from fuzzgraph.errors import UNREADABLE, UsageError
from fuzzgraph.run.identity import ANY
from fuzzgraph.run.spec import Setup
from fuzzgraph.strict_json import decode_json
from fuzzgraph.targets import open_target

if TYPE_CHECKING:
    from fuzzgraph.ports import Target

_BELOW = ("", "python", "src")
"""Where a repository keeps its packages: at its root as vLLM and FlashInfer, or as sglang."""


@dataclass(frozen=True, slots=True)
class SourceTree:
    """One tree, as it is now."""

    package: str
    """Import name."""
    root: Path
    """Folder to put on `sys.path`, absolute."""
    checkout: Checkout | None
    """None outside git."""
    identity: str
    """COMMIT, COMMIT+DIGEST where files were changed, or files:DIGEST outside git."""


def package_of(setup: Setup, target: Target) -> str:
    """The package whose releases and trees a target can be run on.

    Raises:
        UsageError: the target names none.
    """
    package = str(getattr(target, "package", ""))
    if not package:
        option = "source" if setup.source else "release"
        raise UsageError(
            f"{option}={getattr(setup, option)!r}: target {setup.target!r} belongs to no package "
            f"with releases. Drop --{option}."
        )
    return package


def tree_of(setup: Setup, target: Target) -> SourceTree:
    """The tree that a setup names, as it is now.

    Raises:
        UsageError: there is no such tree, or it is not the one that the setup asks for.
    """
    tree = find_tree(setup.source, package_of(setup, target))
    require_identity(tree, setup.tree)
    return tree


def with_tree(setup: Setup) -> Setup:
    """The setup with the place and the identity of its tree, where it names one.

    Raises:
        UsageError: as `tree_of`.
    """
    if not setup.source:
        return setup
    tree = tree_of(setup, open_target(setup.target))
    place = str(Path(setup.source).expanduser().resolve())
    return msgspec.structs.replace(setup, source=place, tree=tree.identity)


def find_tree(source: str, package: str) -> SourceTree:
    """The package in a tree.

    Args:
        source: a checkout, a folder in it, an unpacked wheel, or the folder of an editable
            installation.

    Raises:
        UsageError: there is no such package, which says where it was looked for, or git refuses.
    """
    root = _root(source, package)
    folder = root / package
    try:
        checkout = read_checkout(folder)
    except GitFailed as error:
        raise UsageError(f"source={source!r}: git cannot read this checkout ({error}).") from None
    return SourceTree(package, root, checkout, _identity(folder, checkout))


def require_identity(tree: SourceTree, wanted: str) -> None:
    """Refuse another tree than the one that is wanted.

    Raises:
        UsageError: the tree has another identity.
    """
    if wanted in ("", ANY, tree.identity):
        return
    raise UsageError(
        f"source={str(tree.root)!r} holds {tree.identity}, and {wanted} is asked for"
        f"{_way_there(wanted)}. To take this tree as it is, ask for tree {ANY!r}."
    )


def _way_there(wanted: str) -> str:
    commit, plus, _ = wanted.partition("+")
    if wanted.startswith("files:"):
        return ""
    edits = ", which has changes that were not committed" if plus else ""
    return f" (git checkout {commit[:12]}{edits})"


def _root(source: str, package: str) -> Path:
    given = Path(source).expanduser()
    if not given.is_dir():
        raise UsageError(
            f"source={source!r} is not a folder. Name a checkout of {package}, or a folder with an "
            "unpacked wheel."
        )
    given = given.resolve()
    for folder in (given, *_editable(given, package)):
        for below in _BELOW:
            if (folder / below / package / "__init__.py").is_file():
                return folder / below
    raise UsageError(f"source={source!r} {_why_not(given, package)}")


def _why_not(given: Path, package: str) -> str:
    looked = ", ".join(f"{below}/{package}" if below else package for below in _BELOW)
    empty = [folder for below in _BELOW if (folder := given / below / package).is_dir()]
    if empty and not any(empty[0].iterdir()):
        return (
            f"has an empty folder {empty[0].relative_to(given)}: a submodule that was not fetched. "
            "Run: git submodule update --init."
        )
    top = git_line(given, "rev-parse", "--show-toplevel")
    if top and Path(top) != given and not empty:
        return (
            f"lies in a checkout and has no package {package!r} (looked for {looked}). Name the "
            f"root of the checkout: {top}."
        )
    return (
        f"has no package {package!r} (looked for {looked}). Name a checkout or an unpacked wheel "
        f"of {package}, or a target of the engine that it holds (see 'fuzzgraph targets')."
    )


def _editable(folder: Path, package: str) -> list[Path]:
    """Where an editable installation in this folder of installed packages comes from (PEP 610)."""
    for found in distributions(name=package, path=[str(folder)]):
        try:
            record: Any = decode_json(found.read_text("direct_url.json") or "{}")
            url = urlsplit(str(record.get("url", "")))
            if record.get("dir_info", {}).get("editable") and url.scheme == "file":
                return [Path(unquote(url.path))]
        except (AttributeError, OSError, *UNREADABLE):
            return []
    return []


def _identity(folder: Path, checkout: Checkout | None) -> str:
    if checkout is not None and checkout.commit:
        return checkout.commit + (f"+{checkout.difference}" if checkout.difference else "")
    files = sorted(str(path.relative_to(folder)) for path in folder.rglob("*.py"))
    return f"files:{digest_of_files(folder, files)}"
