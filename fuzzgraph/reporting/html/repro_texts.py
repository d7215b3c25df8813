"""The case and the scripts that a page holds, as far as it has room for them."""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from urllib.parse import quote

import msgspec

from fuzzgraph.case import encode_case
from fuzzgraph.run.events import ExportKind, ReportedFinding

_SCRIPTS_BYTES = 500_000
_DRAWINGS_BYTES = 600_000
_CASES_BYTES = 300_000
"""Room for each, as written on the page, which stays below 2 MB: beyond it a history is a table
and a repro is named by its file."""


class Room:
    """Bytes that are left for one kind of content."""

    def __init__(self, left: int) -> None:
        self._left = left

    def takes(self, markup: str) -> bool:
        """Whether it still fits; it is then counted."""
        size = len(markup.encode())
        if size > self._left:
            return False
        self._left -= size
        return True


class Rooms:
    """The room of a page, kind by kind: a page of many findings keeps the case of each."""

    def __init__(self) -> None:
        self.cases = Room(_CASES_BYTES)
        self.scripts = Room(_SCRIPTS_BYTES)
        self.drawings = Room(_DRAWINGS_BYTES)


_COPIED: dict[str, str] = {
    "case": "Case (save it as case.json)",
    "script": "Script (its first lines say how to run it)",
    "pytest": "Test (run by pytest, with FuzzGraph installed)",
}


def repro_texts(
    reported: ReportedFinding, scripts: Mapping[ExportKind, str], rooms: Rooms
) -> list[tuple[str, str]]:
    """The case, and the scripts that still fit: whoever was sent the page alone can replay it."""
    case = msgspec.json.format(encode_case(reported.case)).decode()
    chosen: dict[str, str] = {"case": case} if rooms.cases.takes(escape(case)) else {}
    for kind in ("pytest", "script"):
        text = scripts.get(kind, "")
        if text and rooms.scripts.takes(escape(text)):
            chosen[kind] = text
    return [(name, chosen[kind]) for kind, name in _COPIED.items() if kind in chosen]


def files_beside(reported: ReportedFinding) -> list[tuple[str, str]]:
    folder = f"findings/{reported.id}"
    names = [export.path.rsplit("/", 1)[-1] for export in reported.exports if export.path]
    return [
        (name, f"{folder}/{quote(name)}") for name in ("case.json", *names) if reported.case_path
    ]
