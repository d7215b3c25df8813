"""Second checkouts of other commits, in which nothing of the owner's checkout is touched.

`git worktree` shares the object store. A worktree lies in the cache, holds one folder of one commit
and is removed at the end; what a killed run left is removed by the next one. No hook runs, and
neither the index, nor the branches, nor the config of the owner's checkout change.
"""

from __future__ import annotations

import contextlib
import hashlib
import shutil
from collections.abc import Iterator
from pathlib import Path

from filelock import FileLock, Timeout

from fuzzgraph.checkout import Checkout, GitFailed, git, git_line
from fuzzgraph.errors import UsageError
from fuzzgraph.process.cache import cache_root

_QUIET = ("-c", "core.hooksPath=/dev/null", "-c", "advice.detachedHead=false")
_MOST = 64
"""Worktrees of one checkout at a time."""


def commit_of(checkout: Checkout, ref: str, option: str) -> str:
    """The commit that a ref names.

    Args:
        option: how the caller names it, for messages.

    Raises:
        UsageError: there is no such commit here.
    """
    commit = "" if ref.startswith("-") else _verified(checkout, ref)
    if commit:
        return commit
    if git_line(checkout.top, "rev-parse", "--is-shallow-repository") == "true":
        raise UsageError(
            f"{option}={ref!r} is not in this shallow clone. Fetch it: git fetch --unshallow "
            "origin '+refs/heads/*:refs/remotes/origin/*', or in a workflow: fetch-depth: 0."
        )
    raise UsageError(
        f"{option}={ref!r} names no commit of {checkout.top}. Use a branch, a tag or a commit of "
        "it; git fetch brings those of its remote."
    )


def _verified(checkout: Checkout, ref: str) -> str:
    return git_line(checkout.top, "rev-parse", "--verify", "--quiet", f"{ref}^{{commit}}")


def merge_base(checkout: Checkout, commit: str, option: str) -> str:
    """The commit where the checkout left the line of another one.

    Raises:
        UsageError: they have none in common here.
    """
    common = git_line(checkout.top, "merge-base", "HEAD", commit)
    if not common:
        raise UsageError(
            f"{option}: {commit[:12]} and HEAD of {checkout.top} have no commit in common here. "
            "In a shallow clone, fetch the commits between them: git fetch --unshallow."
        )
    return common


@contextlib.contextmanager
def worktree(checkout: Checkout, commit: str) -> Iterator[Path]:
    """The same folder of another commit, as long as the context lasts.

    Args:
        checkout: of the folder that the engine lies in.
        commit: a full name.

    Raises:
        UsageError: the commit has no such folder, or git refuses.
    """
    with _place(checkout) as place:
        try:
            git(checkout.top, *_QUIET, "worktree", "add", "--detach", "--no-checkout", "--force",
                str(place), commit)  # fmt: skip
            yield _filled(place, checkout, commit)
        except GitFailed as error:
            raise UsageError(
                f"git cannot make a worktree of {commit[:12]} of {checkout.top} in {place} "
                f"({error})."
            ) from None
        finally:
            _remove(checkout, place)


def _filled(place: Path, checkout: Checkout, commit: str) -> Path:
    """The one folder that is needed; the rest of a repository is not written at all."""
    below = checkout.below or "."
    if checkout.below and not git_line(place, "ls-tree", "-d", commit, "--", f"{below}"):
        raise UsageError(f"commit {commit[:12]} of {checkout.top} has no folder {below!r}.")
    git(place, *_QUIET, "checkout", "--quiet", commit, "--", below)
    return place / checkout.below


@contextlib.contextmanager
def _place(checkout: Checkout) -> Iterator[Path]:
    """A folder that no other run uses; what a killed run left in it is gone."""
    name = hashlib.sha256(str(checkout.top).encode()).hexdigest()[:12]
    root = cache_root() / "worktrees" / name
    root.mkdir(parents=True, exist_ok=True)
    for number in range(_MOST):
        place = root / str(number)
        lock = FileLock(root / f".{number}.lock", blocking=False)
        try:
            lock.acquire()
        except Timeout:
            continue
        try:
            _remove(checkout, place)
            yield place
        finally:
            lock.release()
        return
    raise UsageError(f"{root}: {_MOST} runs use worktrees of {checkout.top} already.")


def _remove(checkout: Checkout, place: Path) -> None:
    """The folder, and what git noted of it: that of no other worktree."""
    with contextlib.suppress(GitFailed):
        git(checkout.top, "worktree", "remove", "--force", "--force", str(place))
    shutil.rmtree(place, ignore_errors=True)
    with contextlib.suppress(GitFailed):  # git removes no worktree whose folder is gone already
        common = Path(checkout.top, git_line(checkout.top, "rev-parse", "--git-common-dir"))
        for note in (common / "worktrees").glob("*/gitdir"):
            if Path(note.read_text(encoding="utf-8").strip()).parent == place:
                shutil.rmtree(note.parent, ignore_errors=True)
