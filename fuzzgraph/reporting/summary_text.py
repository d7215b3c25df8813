"""The readable end of a run: its findings in full, then its figures in three lines."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzgraph.reporting.causes import Cause, causes
from fuzzgraph.reporting.plain_text import finding_brief, finding_text
from fuzzgraph.reporting.skipped import (
    killed_text,
    not_overlapped,
    overlapped,
    skipped_most,
    unchecked,
    undone_of_run,
    unguarded,
)
from fuzzgraph.run.environment import environment_lines
from fuzzgraph.run.events import Reason, ReportedFinding, RunSummary, Setup
from fuzzgraph.text.escaping import one_line
from fuzzgraph.text.numbers import counted, short

_REASONS: dict[Reason, str] = {
    "time": "time is up",
    "examples": "--examples reached",
    "findings": "--findings reached",
    "interrupted": "interrupted",
    "corpus": "end of the corpus",
    "failed": "the run failed",
    "killed": "killed",
}
NEXT = (
    "run a replay command, read repro.py, or send issue.md; docs/read-a-finding.md explains each"
    " line"
)


def stop_reason(summary: RunSummary) -> str:
    """Why the run ended, in a few words."""
    return _REASONS[summary.reason]


def setup_line(setup: Setup) -> str:
    """Target, release or tree, fault, graph engine and device in a few words."""
    words = [setup.target]
    if setup.engine:
        words.append(setup.engine.removeprefix("release "))
    if setup.fault:
        words.append(f"with planted fault {setup.fault}")
    return f"{' '.join(words)}, {setup.graphs} on {setup.device}"


def run_text(summary: RunSummary) -> str:
    """How a run ended, for a terminal or a log: findings, worst first, then the figures."""
    return "\n\n".join([*findings_texts(summary.findings), figures_text(summary)])


def findings_texts(findings: Sequence[ReportedFinding]) -> list[str]:
    """A text for each cause: its worst finding in full, the others in brief."""
    return [cause_text(entry) for entry in causes(findings)]


def figures_text(summary: RunSummary) -> str:
    """The figures of a run without its findings."""
    return "\n".join(map(one_line, _figures(summary)))


def cause_text(entry: Cause) -> str:
    """The worst finding of a cause in full, the others in brief."""
    if not entry.others:
        return finding_text(entry.lead)
    others = "\n\n".join(finding_brief(reported, why) for reported, why in entry.others)
    count = counted(len(entry.others), "more finding")
    return f"{finding_text(entry.lead)}\n\n  {count}, probably of the same cause:\n\n{others}"


def outcome(summary: RunSummary) -> str:
    """What was found, and how much of it is flaky, known or tolerated."""
    found = summary.findings
    kinds = {
        "flaky": sum(reported.flaky for reported in found),
        "known": sum(reported.status == "known" for reported in found),
        "tolerated": sum(reported.status == "tolerated" for reported in found),
    }
    told = [f"{count} {kind}" for kind, count in kinds.items() if count]
    if 1 < (entries := len(causes(found))) < len(found):
        told.insert(0, f"probably {entries} causes")
    elif entries == 1 < len(found):
        told.insert(0, "probably 1 cause")
    shown = counted(len(found), "finding") if found else nothing_found(summary)
    kinds_told = f" ({', '.join(told)})" if told else ""
    failed = "the run failed, " if summary.error else ""
    damaged = "the log is damaged, " if summary.damaged else ""
    return f"{failed}{damaged}{shown}{kinds_told}"


def nothing_found(summary: RunSummary) -> str:
    """What to say of a run without a finding; one whose record is damaged may have had some, and
    one that checked no case had nowhere to look."""
    if summary.damaged:
        return "no finding could be read"
    if not summary.checked:
        return "nothing was checked"
    killed = summary.reason == "killed" and not summary.error
    return "nothing found before it was killed" if killed else "nothing found"


def duration_text(summary: RunSummary) -> str:
    """How long the run took by the clock, and how much of it was search where that differs.

    Shrinking and executing repros come after the search, and may take most of the time.
    """
    search, whole = short(summary.seconds), short(max(summary.seconds, summary.total_seconds))
    return whole if whole == search else f"{whole} ({search} of search)"


def verdict_line(summary: RunSummary) -> str:
    """One line: how much was run, and what it showed."""
    cases, rate = counted(summary.cases, "case"), f"{summary.rate:.0f} cases/s"
    return f"{outcome(summary)} in {cases}, {duration_text(summary)}, {rate}"


def _figures(summary: RunSummary) -> list[str]:
    mean = summary.steps / summary.cases if summary.cases else 0.0
    counts = [f"{summary.corpus_cases} from the corpus", f"{mean:.1f} steps each"]
    if summary.skipped:
        counts.append(f"{counted(summary.skipped, 'case')} skipped")
    if summary.nondeterministic:
        counts.append(f"{summary.nondeterministic} nondeterministic")
    lines = [
        verdict_line(summary),
        f"  {', '.join(counts)}; seed {summary.seed}; {setup_line(summary.setup)}",
        f"  stopped: {stop_reason(summary)}"
        + (f"; {_report_in(summary)} {summary.out}" if summary.out else ""),
    ]
    lines.append(f"  environment: {'; '.join(environment_lines(summary.environment))}")
    lines += [f"  {line}" for line in skipped_most(summary)]
    lines += [f"  {line}" for line in unchecked(summary.unchecked)]
    lines += [f"  {line}" for line in unguarded(summary.unguarded)]
    late = summary.late_copies, summary.unrepeatable
    lines += [f"  not checked: {line}" for line in not_overlapped(summary.setup, *late)]
    lines += [f"  with the host a step ahead, {line}" for line in overlapped(summary.late_copies)]
    lines += [
        f"  kernels run by Triton's own interpreter, {counted(count, 'time')}: {name}"
        for name, count in summary.fallbacks.items()
    ]
    lines += [
        f"  quarantined {counted(count, 'case')}: {name}"
        for name, count in summary.quarantined.items()
    ]
    lines += [f"  tolerated and no longer failing: {line}" for line in summary.mended]
    if summary.killed:
        lines.append(f"  {killed_text(summary.killed)}")
    lines += [f"  damaged: {line}" for line in summary.damaged]
    lines += [f"  ignored: {line}" for line in summary.bad_entries]
    if undone := undone_of_run(summary):
        lines.append(f"  {undone}")
    if summary.error:
        lines.append(f"  run failed: {summary.error}")
    if summary.findings:
        lines.append(f"  next: {NEXT}")
    return lines


def _report_in(summary: RunSummary) -> str:
    """A run that failed, at a full disk say, may not have come to its report."""
    return "what was written is in" if summary.error else "report in"
