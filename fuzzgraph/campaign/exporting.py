"""Writes the repro of a finding beside its case, and runs it before it is called verified."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from fuzzgraph.campaign.folder import RunFolder
from fuzzgraph.corpus import write_atomically
from fuzzgraph.errors import UsageError
from fuzzgraph.events import Export, ExportKind, ReportedFinding, Setup

if TYPE_CHECKING:
    from fuzzgraph.case import Case
    from fuzzgraph.finding import Finding

__all__ = ["FILES", "Exporting", "export_text", "no_export", "verified_rate"]

FILES: dict[ExportKind, str] = {
    "script": "repro.py",
    "pytest": "test_repro.py",
    "issue": "issue.md",
}
"""Kind of export -> name of its file beside the case."""


def export_text(kind: ExportKind, case: Case, finding: Finding, setup: Setup) -> str:
    """The export of one kind.

    Raises:
        UsageError: the target has no export of that kind.
    """
    from fuzzgraph import repro

    writers: dict[ExportKind, Callable[..., str]] = {
        "script": repro.export_script,
        "pytest": repro.export_pytest,
        "issue": repro.export_issue,
    }
    return writers[kind](case, finding, setup)


def verified_rate(kind: ExportKind, path: Path, times: int = 3) -> str:
    """How often the export failed when it was executed, e.g. '3/3'; '' for text."""
    if kind == "issue":
        return ""
    from fuzzgraph import repro

    return str(repro.verify(path, times=times))


class Exporting:
    """The exporter of a run: every kind beside the case, the script executed."""

    def __init__(self, setup: Setup) -> None:
        self._setup = setup

    def __call__(
        self, reported: ReportedFinding, folder: RunFolder, execute: bool
    ) -> tuple[Export, ...]:
        return tuple(
            self._one(kind, reported, folder, execute=execute and kind == "script")
            for kind in FILES
        )

    def _one(
        self, kind: ExportKind, reported: ReportedFinding, folder: RunFolder, *, execute: bool
    ) -> Export:
        path = folder.of(reported.id) / FILES[kind]
        try:
            text = export_text(kind, reported.case, reported.finding, self._setup)
            write_atomically(path, text.encode())
            rate = verified_rate(kind, path) if execute else ""
        except UsageError:
            raise
        except Exception as error:  # a night of fuzzing must not end over one repro
            return Export(kind=kind, path="", error=f"{type(error).__name__}: {error}")
        return Export(kind=kind, path=str(path), rate=rate)


def no_export(reported: ReportedFinding, folder: RunFolder, execute: bool) -> tuple[Export, ...]:
    """For runs whose findings need no repro on disk."""
    return ()
