"""What did not run and why: skipped, quarantined, unreadable, beyond the target, not executed."""

from __future__ import annotations

from fuzzgraph.events import RunSummary
from fuzzgraph.reporting.amounts import counted

__all__ = ["left_out"]


def left_out(summary: RunSummary) -> list[tuple[str, str]]:
    """What, and why; empty where everything ran."""
    rows = [
        (counted(count, "case"), f"skipped: {reason or 'the target cannot express it'}")
        for reason, count in summary.skips.items()
    ]
    untold = summary.skipped - sum(summary.skips.values())
    if untold > 0:
        rows.append((counted(untold, "case"), "skipped: the target cannot express them"))
    rows += [
        (counted(count, "case"), f"quarantined, never launched: {entry}")
        for entry, count in summary.quarantined.items()
    ]
    rows += [("an entry", f"could not be used: {line}") for line in summary.bad_entries]
    rows += _repros(summary)
    rows += [("not drawn", f"beyond the target: {line}") for line in summary.beyond]
    if summary.reason in ("killed", "interrupted", "failed"):
        rows.append(("the rest of the budget", _CUT[summary.reason]))
    return rows


_CUT = {
    "killed": "the run was killed",
    "interrupted": "the run was interrupted",
    "failed": "the run failed",
}


def _repros(summary: RunSummary) -> list[tuple[str, str]]:
    rows = []
    for reported in summary.findings:
        for export in reported.exports:
            if export.error:
                rows.append((f"{export.kind} of {reported.id}", f"not written: {export.error}"))
            elif export.kind == "script" and not export.rate:
                rows.append((f"script of {reported.id}", "written, not executed: no time left"))
        if not reported.finding.confirmed:
            rows.append((f"fresh sessions for {reported.id}", "the run ended first"))
    return rows
