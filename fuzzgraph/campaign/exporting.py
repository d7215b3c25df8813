"""Writes the repro of a finding beside its case, and runs it before it is called verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import UsageError
from fuzzgraph.events import Export, ReportedFinding, Setup

if TYPE_CHECKING:
    from fuzzgraph.case import Case
    from fuzzgraph.finding import Finding

__all__ = ["FILES", "export_all", "export_text", "no_export"]

FILES = {"script": "repro.py", "pytest": "test_repro.py", "issue": "issue.md"}
"""Kind of export -> name of its file."""


def export_text(kind: str, case: Case, finding: Finding, setup: Setup) -> str:
    """The export of one kind.

    Raises:
        UsageError: an unknown kind.
    """
    from fuzzgraph import repro

    writers: dict[str, Callable[..., str]] = {
        "script": repro.export_script,
        "pytest": repro.export_pytest,
        "issue": repro.export_issue,
    }
    if kind not in writers:
        raise UsageError(f"as={kind!r} is unknown. Use one of: {', '.join(writers)}.")
    return writers[kind](case, finding, setup)


def export_all(reported: ReportedFinding, folder: RunFolder) -> tuple[Export, ...]:
    """Write script, pytest file and issue text; the script is executed three times."""
    raise NotImplementedError


def no_export(reported: ReportedFinding, folder: RunFolder) -> tuple[Export, ...]:
    """For runs whose findings need no repro on disk."""
    return ()


def _write(path: Path, text: str) -> str:
    write_atomically(path, text.encode())
    return str(path)
