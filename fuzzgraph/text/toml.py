"""TOML by the parser of the standard library, or the same one under its older name."""

from __future__ import annotations

import sys
from typing import Any

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib


def parse_toml(text: str) -> dict[str, Any]:
    """The tables of a TOML text; a key that stands twice is refused.

    Raises:
        one of `errors.UNREADABLE`: not TOML, or nested too deep.
    """
    return tomllib.loads(text)
