"""The identity of a tree of sources as text: how it is written, checked and read.

COMMIT, COMMIT+DIGEST where files were changed since, or files:DIGEST outside git.
"""

from __future__ import annotations

import re

from fuzzgraph.errors import UsageError

ANY = "any"
"""In the place of an identity: whatever the tree holds."""
_IDENTITY = re.compile(r"[0-9a-f]{40,64}(\+[0-9a-f]{12})?|files:[0-9a-f]{12}", re.ASCII)


def checked_identity(text: str, where: str = "tree") -> str:
    """The text, if it has the form of an identity, or is `ANY`.

    Raises:
        UsageError: it has another form.
    """
    if text not in ("", ANY) and not _IDENTITY.fullmatch(text):
        raise UsageError(
            f"{where}={text!r} is not the identity of a tree. Copy it from the finding, or write "
            f"{ANY!r} for whatever the tree holds."
        )
    return text


def identity_words(identity: str) -> str:
    """An identity for a line of text.

    >>> identity_words("0123456789abcdef0123456789abcdef01234567+0a1b2c3d4e5f")
    'commit 0123456789ab with changes 0a1b2c3d4e5f'
    """
    commit, plus, difference = identity.partition("+")
    if identity.startswith("files:"):
        return identity
    return f"commit {commit[:12]}" + (f" with changes {difference}" if plus else "")
