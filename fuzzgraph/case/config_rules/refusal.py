"""How a case is refused."""

from __future__ import annotations

from typing import NoReturn

from fuzzgraph.errors import InvalidCase


def refuse(where: str, value: object, rule: str, way_out: str) -> NoReturn:
    """Raise the one line that every refused case gets."""
    raise InvalidCase(f"{where}={value!r} {rule}. {way_out}")
