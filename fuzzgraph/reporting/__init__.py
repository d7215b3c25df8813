"""Shows what a campaign emits: terminal, JSON lines, and the reports. Decides nothing."""

from __future__ import annotations

from fuzzgraph.reporting.ending import ending, joined, setup_line, verdict_line
from fuzzgraph.reporting.jsonl import EventFile
from fuzzgraph.reporting.left_out import unchecked
from fuzzgraph.reporting.markdown import markdown
from fuzzgraph.reporting.terminal import progress_line, progress_on, start_line
from fuzzgraph.reporting.wording import as_json, case_table, config_line, finding_head, finding_text

__all__ = [
    "EventFile",
    "as_json",
    "case_table",
    "config_line",
    "ending",
    "finding_head",
    "finding_text",
    "joined",
    "markdown",
    "progress_line",
    "progress_on",
    "setup_line",
    "start_line",
    "unchecked",
    "verdict_line",
]
