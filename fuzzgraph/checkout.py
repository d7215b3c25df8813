"""What git says of the folder that an engine's code lies in: commit, branch, and what was changed.

Asks git only, and only questions: git is told to take no locks, so that not even the index of a
checkout is refreshed.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SECONDS = 60.0
"""What one question may take; a large checkout on a slow disk needs some."""
_READ_ONLY = ("-c", "diff.autoRefreshIndex=false")
"""`git diff` refreshes the index whatever GIT_OPTIONAL_LOCKS says."""
_NONE = ("not a git repository", "no git on this machine")
_DIGITS = 12
"""Of the digest of a difference: enough to tell two edits apart."""


class GitFailed(Exception):
    """git is missing, took too long or refused; the text is the last line that it said."""


@dataclass(frozen=True, slots=True)
class Checkout:
    """A folder inside a git checkout, as it is now."""

    top: Path
    """Root of the checkout."""
    below: str
    """The folder's path below the root, '/' between names; '' for the root itself."""
    commit: str
    """40 or 64 hexadecimal digits; '' before the first commit."""
    branch: str
    """'' where no branch is checked out."""
    difference: str
    """Digest of all that differs from the commit in this folder, new files included; '' for
    nothing. Files that git ignores, such as compiled parts, do not count."""


def git(folder: Path | str, *words: str) -> bytes:
    """What git prints for a question about a folder.

    Raises:
        GitFailed: it has no answer.
    """
    # Whoever runs us from a hook has git's variables set for another checkout.
    environment = {name: value for name, value in os.environ.items() if not name.startswith("GIT_")}
    environment |= {"GIT_OPTIONAL_LOCKS": "0", "LC_ALL": "C"}
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *_READ_ONLY, *words],
            capture_output=True,
            stdin=subprocess.DEVNULL,
            timeout=_SECONDS,
            env=environment,
        )
    except FileNotFoundError:
        raise GitFailed("there is no git on this machine") from None
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        raise GitFailed(" ".join(str(error).split())) from None
    if done.returncode:
        said = done.stderr.decode(errors="replace").strip().splitlines()
        raise GitFailed(said[-1] if said else f"git ended with exit code {done.returncode}")
    return done.stdout


def git_line(folder: Path | str, *words: str) -> str:
    """The one line that git prints; '' where it has no answer."""
    try:
        return git(folder, *words).decode(errors="replace").strip()
    except GitFailed:
        return ""


def read_checkout(folder: Path) -> Checkout | None:
    """The checkout that tracks a folder; None where none does.

    A folder that lies in a checkout and is ignored there, as an environment below `.venv`, is
    none of its files.

    Raises:
        GitFailed: git refuses, for example a checkout of another user's.
    """
    try:
        top = git(folder, "rev-parse", "--show-toplevel").decode(errors="replace").strip()
    except GitFailed as error:
        if any(words in str(error) for words in _NONE):
            return None
        raise
    if not git(folder, "ls-files", "--", "."):
        return None
    return Checkout(
        top=Path(top),
        below=git_line(folder, "rev-parse", "--show-prefix").rstrip("/"),
        commit=git_line(folder, "rev-parse", "--verify", "--quiet", "HEAD"),
        branch=git_line(folder, "symbolic-ref", "--quiet", "--short", "HEAD"),
        difference=_difference(folder),
    )


def _difference(folder: Path) -> str:
    """Digest of the tracked files' difference and of the files that git does not know."""
    try:
        changed = git(folder, "diff", "HEAD", "--binary", "--no-ext-diff", "--no-color", "--", ".")
    except GitFailed:  # before the first commit
        changed = b""
    unknown = git(folder, "ls-files", "--others", "--exclude-standard", "-z", "--", ".")
    names = [os.fsdecode(name) for name in unknown.split(b"\0") if name]
    if not changed and not names:
        return ""
    return digest_of_files(folder, sorted(names), changed)


def digest_of_files(folder: Path, names: Sequence[str], begin: bytes = b"") -> str:
    """One digest of named files' names and contents.

    Args:
        names: below the folder, in an order that does not depend on the machine.
        begin: what else it covers.
    """
    digest = hashlib.sha256(begin)
    for name in names:
        path = folder / name
        content = os.fsencode(os.readlink(path)) if path.is_symlink() else path.read_bytes()
        digest.update(b"\0%s\0%s" % (os.fsencode(name), hashlib.sha256(content).digest()))
    return digest.hexdigest()[:_DIGITS]
