"""The commits of a checkout as a line: those that change the engine's package, in worktrees.

Only first parents are followed, so that a merge is one commit with all that it brought: the
commits inside it were never the engine that the branch had.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from fuzzgraph.bisect.line import Line, Point
from fuzzgraph.checkout import Checkout, GitFailed, git, git_line
from fuzzgraph.errors import UsageError
from fuzzgraph.run.spec import Setup
from fuzzgraph.source_tree import find_tree, package_of
from fuzzgraph.targets import open_target
from fuzzgraph.text.escaping import one_line
from fuzzgraph.worktrees import commit_of, worktree

_SHORT = 12
"""Digits of a commit in messages, as git shows them in large repositories."""
_SUBJECT = 72
"""Longest subject that is kept, the width that git's own guide asks for."""


@dataclass(frozen=True, slots=True)
class _Commit:
    name: str
    parents: tuple[str, ...]
    subject: str


def commit_line(setup: Setup, good: str, bad: str) -> Line:
    """The commits between two that change the engine's package, the older one included.

    The newer end is the last of them, which holds the same package.

    Args:
        setup: with a source; its tree is ignored, and the working tree is not touched.

    Raises:
        UsageError: no git checkout, an end that is no commit of it, two ends of which neither is
            an ancestor of the other, or nothing between them changes the package.
    """
    package = package_of(setup, open_target(setup.target))
    checkout = find_tree(setup.source, package).checkout
    if checkout is None or not checkout.commit:
        raise UsageError(
            f"source={setup.source!r} is no git checkout with commits, so that there is nothing "
            "to bisect. Name a checkout, or releases instead of --source."
        )
    try:
        return _line(setup, checkout, good, bad)
    except GitFailed as error:
        raise UsageError(f"source={setup.source!r}: git cannot list commits ({error}).") from None


def _line(setup: Setup, checkout: Checkout, good: str, bad: str) -> Line:
    good_commit = commit_of(checkout, good, "--good")
    bad_commit = commit_of(checkout, bad, "--bad")
    older = _older(checkout, good_commit, bad_commit)
    newer = bad_commit if older == good_commit else good_commit
    walked = _between(checkout, older, newer)
    touching = _touching(checkout, older, newer)
    # Where a merge brought the older end in, that merge brought the rest of its branch as well.
    kept = [
        commit
        for number, commit in enumerate(walked)
        if commit.name in touching or (number == 0 and commit.parents[:1] != (older,))
    ]
    if not kept:
        raise UsageError(
            f"no commit between --good={good} and --bad={bad} changes {checkout.below} of "
            f"{checkout.top}. Name other ends."
        )
    merges = any(len(commit.parents) > 1 for commit in walked)
    commits = [*_log(checkout, "--max-count=1", older), *kept]

    @contextmanager
    def setup_at(point: Point) -> Iterator[Setup]:
        with worktree(checkout, point.name) as folder:
            yield msgspec.structs.replace(setup, source=str(folder.parent), tree=point.name)

    return Line(
        over="commits",
        points=tuple(Point(one.name, one.name[:_SHORT], one.subject) for one in commits),
        bad_is_last=newer == bad_commit,
        setup_at=setup_at,
        about=_about(checkout, len(walked) + 1, merges=merges),
    )


def _about(checkout: Checkout, walked: int, *, merges: bool) -> str:
    return (
        f"commits to ask, of {walked}: those that change {checkout.below}, and the older end"
        + ("; first parents only, a merge is one commit" if merges else "")
        + ("; what is not committed is left out" if checkout.difference else "")
    )


def _older(checkout: Checkout, good: str, bad: str) -> str:
    """The end that the other one descends from."""
    if good == bad:
        raise UsageError(f"--good and --bad are both commit {good[:_SHORT]}. Name two commits.")
    common = git_line(checkout.top, "merge-base", good, bad)
    if common in (good, bad):
        return common
    if not common:
        raise UsageError(
            f"--good={good[:_SHORT]} and --bad={bad[:_SHORT]} have no commit in common here. "
            "In a shallow clone, fetch the commits between them: git fetch --unshallow."
        )
    raise UsageError(
        f"--good={good[:_SHORT]} and --bad={bad[:_SHORT]} lie on two branches, which part at "
        f"{common[:_SHORT]}. Name that commit for one of the two."
    )


def _between(checkout: Checkout, older: str, newer: str) -> list[_Commit]:
    """The first parents of the newer end that descend from the older one, oldest first."""
    descending = set(_names(checkout, "--ancestry-path", f"{older}..{newer}"))
    first_parents = _log(checkout, "--first-parent", "--reverse", f"{older}..{newer}")
    return [commit for commit in first_parents if commit.name in descending]


def _touching(checkout: Checkout, older: str, newer: str) -> set[str]:
    """Those that change the package, a merge as seen from its first parent."""
    wanted = ("--first-parent", f"{older}..{newer}", "--", f":(top,literal){checkout.below}")
    return set(_names(checkout, *wanted))


def _names(checkout: Checkout, *words: str) -> list[str]:
    return git(checkout.top, "rev-list", *words).decode().split()


def _log(checkout: Checkout, *words: str) -> list[_Commit]:
    """rev-list, not log: what it prints depends on nobody's config."""
    said = git(checkout.top, "rev-list", "--format=%H%x09%P%x09%s", *words)
    lines = said.decode(errors="replace").split("\n")
    parts = [line.split("\t", 2) for line in lines if "\t" in line]
    return [_Commit(name, tuple(up.split()), _subject(text)) for name, up, text in parts]


def _subject(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= _SUBJECT else f"{line[: _SUBJECT - 3]}..."
