"""What did not run and why: skipped, quarantined, unreadable, beyond the target, not executed."""

from __future__ import annotations

from fuzzgraph.events import Left, ReportedFinding, RunSummary
from fuzzgraph.reporting.amounts import counted

__all__ = ["finishing", "left_out", "left_words"]

_UNDONE: dict[Left, str] = {
    "confirm": "not confirmed",
    "shrink": "not shrunk to the end",
    "export": "repro not executed",
}


def left_words(reported: ReportedFinding) -> str:
    """What there was no time for; '' for nothing."""
    return ", ".join(_UNDONE[one] for one in reported.left)


def finishing(summary: RunSummary) -> str:
    """How much the end of the budget left undone, and the command that does it; '' for nothing."""
    parts = [
        f"{count} {words}"
        for kind, words in _UNDONE.items()
        if (count := sum(kind in reported.left for reported in summary.findings))
    ]
    if summary.cut_off:
        parts.append(f"case {summary.cut_off} cut off")
    if not parts:
        return ""
    return f"{', '.join(parts)}; finish with: fuzzgraph resume {summary.out}"


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
    if undone := finishing(summary):
        rows.append(("for lack of time", undone))
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
                why = export.error if export.path else f"not written: {export.error}"
                rows.append((f"{export.kind} of {reported.id}", why))
            elif export.kind == "script" and not export.rate:
                why = "written, not executed: no time left"
                rows.append((f"script of {reported.id}", why))
        if not reported.finding.confirmed:
            rows.append((f"fresh sessions for {reported.id}", "the run ended first"))
    return rows
