"""The versions of Triton that the lanes were tested with; how they differ is in `compat`.

`make triton-versions` runs the tests with each of them. This module does not import Triton.
"""

from __future__ import annotations

from collections.abc import Sequence

TESTED_TRITON = ("3.6.0", "3.7.0", "3.7.1", "3.8.0", "3.9.0")


def refusal(version: str) -> str:
    """Why the lanes do not run with this Triton; "" if they do.

    >>> refusal("3.7.1")
    ''
    """
    if version in TESTED_TRITON:
        return ""
    return f"Triton {version} was not tested. Use Triton {text_of_versions()}."


def text_of_versions(versions: Sequence[str] | None = None) -> str:
    """The tested versions as text.

    >>> text_of_versions(["3.1", "3.2", "3.4"])
    '3.1, 3.2 or 3.4'
    """
    *most, last = TESTED_TRITON if versions is None else versions
    return f"{', '.join(most)} or {last}" if most else last


def clash_with_numpy(error: Exception, triton: str, numpy: str) -> str:
    """Why the interpreter itself failed and not the kernel; "" for any other error."""
    # Before 3.7.0 it takes `int()` of an array of one element, which numpy refuses from 2.4 on.
    if "only 0-dimensional arrays can be converted to Python scalars" not in str(error):
        return ""
    return (
        f"the interpreter of Triton {triton} does not run this kernel with numpy {numpy}."
        f" Use numpy below 2.4, or Triton {text_of_versions(TESTED_TRITON[1:])}."
    )
