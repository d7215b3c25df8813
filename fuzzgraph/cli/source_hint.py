"""The line that proposes the checkout around the current folder as the engine under test."""

from __future__ import annotations

from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzgraph.errors import UsageError

if TYPE_CHECKING:
    from fuzzgraph.run.spec import Setup


def source_hint(setup: Setup, target: object) -> str:
    """What to add to the call; '' where an engine is named, or this checkout has none of it.

    Args:
        target: that of the setup.
    """
    package = str(getattr(target, "package", ""))
    if setup.source or setup.release or not package:
        return ""
    for place in _places():
        with suppress(UsageError):
            return _hint(package, place)
    return ""


def _places() -> list[str]:
    """The current folder, and the root of its checkout as seen from there."""
    from fuzzgraph.checkout import git_line

    up = git_line(".", "rev-parse", "--show-cdup").rstrip("/")
    return [".", up] if up else ["."]


def _hint(package: str, place: str) -> str:
    from fuzzgraph.source_tree import find_tree

    tree = find_tree(place, package)
    if tree.checkout is None or _is_imported_from(tree.root, package):
        return ""
    return f"the {package} of this checkout is not what runs: --source {place} fuzzes it"


def _is_imported_from(root: Path, package: str) -> bool:
    """Whether the package that is installed is that of this tree, as an editable one is."""
    try:
        found = find_spec(package)
    except (ImportError, ValueError):
        return False
    origin = found.origin if found is not None else None
    return origin is not None and Path(origin).resolve().is_relative_to(root / package)
