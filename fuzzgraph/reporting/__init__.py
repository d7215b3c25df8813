"""Shows what a campaign emits: terminal, JSON lines, and the reports. Decides nothing."""

from __future__ import annotations

from fuzzgraph.reporting.jsonl import EventFile
from fuzzgraph.reporting.markdown import markdown
from fuzzgraph.reporting.plain_text import as_json, finding_text
from fuzzgraph.reporting.skipped import not_overlapped, overlapped, unchecked, unguarded
from fuzzgraph.reporting.summary_text import run_text, setup_line, verdict_line
from fuzzgraph.reporting.terminal import progress_line, progress_on, start_line

__all__ = [
    "EventFile",
    "as_json",
    "run_text",
    "finding_text",
    "markdown",
    "progress_line",
    "progress_on",
    "setup_line",
    "start_line",
    "not_overlapped",
    "overlapped",
    "unchecked",
    "unguarded",
    "verdict_line",
]
