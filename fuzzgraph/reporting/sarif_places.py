"""Where a result of SARIF points: lines of the engine, below its checkout, and the case's file.

No path is absolute: one machine's folders mean nothing where a log is read.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

from fuzzgraph.finding import EngineLine
from fuzzgraph.run.events import ReportedFinding, RunSummary
from fuzzgraph.text.finding_text import line_text

RUN = "RUN"
SOURCE = "%SRCROOT%"
"""What code hosts take for the root of the repository."""


def base_ids(summary: RunSummary) -> dict[str, Any]:
    """What relative paths are relative to; whoever reads the log knows where that is."""
    environment = summary.environment
    if environment.engine_below or summary.setup.source:
        root = f"The root of the checkout of {environment.engine or 'the engine'}."
    else:
        root = f"The folder that holds the package {environment.engine or 'of the engine'}."
    return {
        RUN: {"description": {"text": "The folder of the run."}},
        SOURCE: {"description": {"text": root}},
    }


def locations(reported: ReportedFinding) -> list[dict[str, Any]]:
    """The one place where a result is shown: the most telling line, else the case."""
    finding = reported.finding
    place = _at_line(finding.lines[0]) if finding.lines else at_case(reported)
    if finding.buffer:
        place["logicalLocations"] = [
            {
                "name": finding.buffer,
                "fullyQualifiedName": f"{finding.target}.{finding.buffer}",
                "kind": "variable",
            }
        ]
    return [place]


def related(reported: ReportedFinding) -> list[dict[str, Any]]:
    """The other lines, and the case where a line took its place."""
    lines = reported.finding.lines
    places = [_at_line(line) for line in lines[1:]]
    if lines:
        places.append(at_case(reported) | {"message": {"text": "The case that shows it."}})
    return [{"id": number} | place for number, place in enumerate(places, start=1)]


def at_case(reported: ReportedFinding) -> dict[str, Any]:
    """The file of its case, as JSON on one line."""
    return _place(f"findings/{reported.id}/case.json", RUN, 1)


def _at_line(line: EngineLine) -> dict[str, Any]:
    return _place(quote(line.path), SOURCE, line.line) | {"message": {"text": line_text(line)}}


def _place(uri: str, base: str, line: int) -> dict[str, Any]:
    return {
        "physicalLocation": {
            "artifactLocation": {"uri": uri, "uriBaseId": base},
            "region": {"startLine": line},
        }
    }


def without_folders(log: Any, summary: RunSummary) -> Any:
    """The log with the folders of this machine taken out of its texts."""
    folders = {summary.setup.source: "", summary.spec.out: f"{RUN}/"}
    folders |= {str(Path.cwd()): "", str(Path.home()): "~/"}
    names = sorted(filter(os.path.isabs, folders), key=len, reverse=True)
    known = [(_folder(name), folders[name]) for name in names if name.strip("/")]
    return each_text(log, lambda text: _shortened(text, known))


def _folder(name: str) -> re.Pattern[str]:
    return re.compile(rf"{re.escape(name.rstrip('/'))}(/|(?![\w.-]))")


_ABSOLUTE = re.compile(r"(?<![\w:/.~-])/(?:[^\s/:'\",;()]+/)+")
"""The folders of an absolute path; not those of an address on the web."""


def _shortened(text: str, known: list[tuple[re.Pattern[str], str]]) -> str:
    for folder, called in known:
        parts = folder.split(text)  # text, what followed the folder, text, ...
        ends = [called if part else called.rstrip("/") or "." for part in parts[1::2]]
        text = "".join(map("".join, zip(parts[::2], [*ends, ""], strict=True)))
    return _ABSOLUTE.sub(".../", text)


def each_text(value: Any, change: Callable[[str], str]) -> Any:
    """The same with every text of it changed."""
    if isinstance(value, str):
        return change(value)
    if isinstance(value, dict):
        return {name: each_text(one, change) for name, one in value.items()}
    return [each_text(one, change) for one in value] if isinstance(value, list) else value
