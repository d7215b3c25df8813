"""What did not run and why: skipped, quarantined, unreadable, unsupported, out of time."""

from __future__ import annotations

import shlex
from collections.abc import Mapping

from fuzzgraph.run.events import Export, Left, ReportedFinding, RunSummary
from fuzzgraph.run.spec import Setup
from fuzzgraph.text.numbers import bytes_text, counted

_UNDONE: dict[Left, tuple[str, str]] = {
    "confirm": ("finding", "not confirmed"),
    "shrink": ("finding", "not fully shrunk"),
    "export": ("repro script", "not fully run"),
}
"""What is counted, and what was not done with it."""

_LINES = 3
"""Lines that give late copies and are named."""
_UNSUPPORTED = "unsupported by target"
"""Why a case was skipped of which no reason is on record."""


def undone_text(reported: ReportedFinding) -> str:
    """What there was no time for; '' for nothing."""
    return ", ".join(" ".join(_UNDONE[one]) for one in reported.left)


def execution_text(export: Export) -> str:
    """How executing a repro ended; '' for one that is only text.

    >>> execution_text(Export(kind="script", path="repro.py", rate="2/2", cut_off=True))
    'fails 2/2, the other runs were cut off'
    """
    if export.rate:
        return f"fails {export.rate}" + (", the other runs were cut off" * export.cut_off)
    if export.cut_off:
        return "its runs were cut off"
    return "not run yet" if export.kind == "script" else ""


def undone_of_run(summary: RunSummary) -> str:
    """What the end of the budget left undone, and the command that does it; '' for nothing."""
    parts = [
        f"{counted(count, noun)} {words}"
        for kind, (noun, words) in _UNDONE.items()
        if (count := sum(kind in reported.left for reported in summary.findings))
    ]
    if summary.cut_off:
        parts.append(f"case {summary.cut_off} cut off")
    if not parts:
        return ""
    return f"not verified (out of time): {', '.join(parts)}; to finish: {_resume_command(summary)}"


def _resume_command(summary: RunSummary) -> str:
    """What the caller has to name again is named; quoted, for a folder may have any name."""
    words = ["fuzzgraph", "resume", summary.out]
    if ":" in summary.setup.target:
        words += ["--target", summary.setup.target]
    return shlex.join(words)


def killed_text(count: int) -> str:
    """What to say of workers that somebody killed; their cases were run again."""
    were = "was" if count == 1 else "were"
    return (
        f"{counted(count, 'worker')} {were} killed from outside (signal 9), retried; out of memory?"
    )


def unchecked(launches: Mapping[str, int]) -> list[str]:
    """Why the accesses and races of Triton kernels were not checked, one line for each reason.

    >>> unchecked({"the kernels are compiled": 2})
    ['access and race checks are off for Triton kernels: the kernels are compiled (2 launches)']
    """
    return [
        f"access and race checks are off for Triton kernels: {reason.rstrip('.')}"
        f" ({counted(count, 'launch')})"
        for reason, count in launches.items()
    ]


def unguarded(stages: Mapping[str, int]) -> list[str]:
    """How much memory of a device no guard covers, in one line; empty for none.

    >>> unguarded({"capture": 5 << 20, "prepare": 8192})
    ['outside of guarded memory, where overruns hit no red zone: 5.0 MiB at capture, 8.0 KiB at \
prepare']
    """
    told = ", ".join(f"{bytes_text(count)} at {stage}" for stage, count in stages.items())
    return [f"outside of guarded memory, where overruns hit no red zone: {told}"] if told else []


def unchecked_of_run(summary: RunSummary) -> list[str]:
    """What was to be checked and was not, one line for each reason."""
    late = summary.late_copies, summary.unrepeatable
    return [*unchecked(summary.unchecked), *not_overlapped(summary.setup, *late)]


def not_overlapped(setup: Setup, copies: Mapping[str, int], unrepeatable: int) -> list[str]:
    """What `--overlap` was to check and did not.

    Args:
        copies: line of the engine -> late copies that it gave, and work of side streams.
        unrepeatable: steps whose late work was not judged.

    >>> not_overlapped(Setup(overlap=True), {"a.py:1 in f": 2}, 1)
    ['late work of 1 step: the step did not repeat itself']
    """
    if not setup.overlap:
        return []
    if not copies:
        return ["--overlap: no copy of pinned memory and no side stream could run late"]
    if not unrepeatable:
        return []
    return [f"late work of {counted(unrepeatable, 'step')}: the step did not repeat itself"]


def overlapped(copies: Mapping[str, int]) -> list[str]:
    """How often copies and side streams ran late, and the lines that gave most of that; empty where
    nothing did.

    >>> overlapped({"a.py:1 in f": 2, "b.py:3 in g": 4})
    ['copies and side streams ran late 6 times, given at b.py:3 in g (4), a.py:1 in f (2)']
    """
    if not copies:
        return []
    most = sorted(copies.items(), key=lambda entry: -entry[1])
    given = ", ".join(f"{line} ({count})" for line, count in most[:_LINES])
    others = most[_LINES:]
    more = f" and {counted(len(others), 'other line')}" if others else ""
    times = counted(sum(copies.values()), "time")
    return [f"copies and side streams ran late {times}, given at {given}{more}"]


def skipped_most(summary: RunSummary) -> list[str]:
    """The most frequent reason, where generated cases were skipped: those are drawn for the target;
    empty elsewhere."""
    if summary.skipped <= summary.corpus_cases and summary.checked:
        return []
    if not summary.skips:
        return ["no case came to its end; give the run more time"] if not summary.cases else []
    why, count = max(summary.skips.items(), key=lambda entry: entry[1])
    return [f"skipped {counted(count, 'case')}: {why or _UNSUPPORTED}"]


def not_run(summary: RunSummary) -> list[tuple[str, str]]:
    """What, and why; empty where everything ran."""
    rows = [
        (counted(count, "case"), f"skipped: {reason or _UNSUPPORTED}")
        for reason, count in summary.skips.items()
    ]
    untold = summary.skipped - sum(summary.skips.values())
    if untold > 0:
        rows.append((counted(untold, "case"), f"skipped: {_UNSUPPORTED}"))
    rows += [
        (counted(count, "case"), f"quarantined, never launched: {entry}")
        for entry, count in summary.quarantined.items()
    ]
    if summary.killed:
        rows.append(("retried", killed_text(summary.killed)))
    rows += [("a part of the log", f"could not be read: {line}") for line in summary.damaged]
    rows += [("an entry", f"could not be used: {line}") for line in summary.bad_entries]
    rows += [("a check", line) for line in unchecked_of_run(summary)]
    rows += [("a guard", line) for line in unguarded(summary.unguarded)]
    rows += _repros(summary)
    rows += [("not generated", f"unsupported by target: {line}") for line in summary.beyond]
    if undone := undone_of_run(summary):
        rows.append(("out of time", undone))
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
            elif export.kind == "script" and (export.cut_off or not export.rate):
                why = f"written, {execution_text(export)}: out of time"
                rows.append((f"script of {reported.id}", why))
        if not reported.finding.confirmed:
            rows.append((f"fresh sessions for {reported.id}", "the run ended first"))
    return rows
