"""Leaves a gate on disk: the record, the page for a comment, SARIF."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec

from fuzzgraph.corpus import write_atomically
from fuzzgraph.gate.records import GateSummary
from fuzzgraph.gate.report import markdown, sarif_log


def write_gate(summary: GateSummary, folder: Path) -> None:
    """Write `gate.json`, `summary.md` and `report.sarif`.

    Raises:
        UsageError: the folder cannot be written.
    """
    write_atomically(folder / "gate.json", msgspec.json.format(msgspec.json.encode(summary)))
    write_atomically(folder / "summary.md", markdown(summary).encode())
    write_atomically(folder / "report.sarif", json.dumps(sarif_log(summary), indent=1).encode())
