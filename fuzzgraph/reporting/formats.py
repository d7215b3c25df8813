"""The reports of a run by name: which file each becomes, and what it holds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal, TypeAlias

import msgspec

from fuzzgraph.reporting.html import Material, html
from fuzzgraph.reporting.junit import junit
from fuzzgraph.reporting.markdown import markdown
from fuzzgraph.reporting.plain_text import as_json
from fuzzgraph.reporting.sarif import sarif
from fuzzgraph.reporting.trend import TrendPoint
from fuzzgraph.run.events import RunSummary

Format: TypeAlias = Literal["html", "junit", "sarif", "markdown", "json"]
FORMATS: dict[Format, str] = {
    "html": "report.html",
    "junit": "junit.xml",
    "sarif": "report.sarif",
    "markdown": "summary.md",
    "json": "report.json",
}
"""Name -> file in the folder of the run."""


class _Record(msgspec.Struct, frozen=True, kw_only=True):
    """`report.json`: the summary, and the nights before it."""

    report: Literal[1] = 1
    """Version of this shape."""
    summary: RunSummary
    nights: Sequence[TrendPoint]


def report(kind: Format, summary: RunSummary, material: Material) -> bytes:
    """The whole file."""
    writers: dict[Format, Callable[[], str | bytes]] = {
        "html": lambda: html(summary, material),
        "junit": lambda: junit(summary),
        "sarif": lambda: as_json(sarif(summary)) + "\n",
        "markdown": lambda: markdown(summary, material.trend),
        "json": lambda: as_json(_Record(summary=summary, nights=material.trend)) + "\n",
    }
    content = writers[kind]()
    return content.encode() if isinstance(content, str) else content
