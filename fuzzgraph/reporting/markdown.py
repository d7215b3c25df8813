"""A run as a Markdown page."""

from __future__ import annotations

from fuzzgraph.events import ReportedFinding, RunSummary
from fuzzgraph.finding import CLAUSES
from fuzzgraph.reporting.amounts import short
from fuzzgraph.reporting.ending import setup_line, verdict_line
from fuzzgraph.reporting.wording import finding_text

__all__ = ["markdown"]


def markdown(summary: RunSummary) -> str:
    """Figures, a table of findings, and each of them in full."""
    parts = [f"# FuzzGraph run: {verdict_line(summary)}", _figures(summary)]
    if summary.findings:
        parts.append(_table(summary))
    parts += [
        f"## {reported.id}\n\n```text\n{finding_text(reported)}\n```"
        for reported in summary.findings
    ]
    if summary.bad_entries:
        parts.append("## Bad corpus entries\n\n" + "\n".join(f"- {e}" for e in summary.bad_entries))
    if summary.error:
        parts.append(f"## The run failed\n\n`{summary.error}`")
    return "\n\n".join(parts) + "\n"


def _figures(summary: RunSummary) -> str:
    rows = {
        "target": setup_line(summary.setup),
        "seed": summary.seed,
        "profile": summary.profile,
        "shards": summary.shards,
        "time": short(summary.seconds),
        "cases": f"{summary.cases} ({summary.corpus_cases} from the corpus)",
        "steps": summary.steps,
        "cases per second": f"{summary.rate:.0f}",
        "skipped": summary.skipped,
        "nondeterministic": summary.nondeterministic,
        "ended by": summary.reason,
        "fuzzgraph": summary.fuzzgraph,
    }
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


def _table(summary: RunSummary) -> str:
    head = ["| finding | broken clause | buffer | oracle | steps | rate | cases with it |"]
    head.append("|---|---|---|---|---|---|---|")
    return "\n".join([*head, *(_row(summary, reported) for reported in summary.findings)])


def _row(summary: RunSummary, reported: ReportedFinding) -> str:
    finding = reported.finding
    cells = [
        f"[{reported.id}](findings/{reported.id}/case.json)",
        CLAUSES[finding.clause],
        f"`{finding.buffer}`" if finding.buffer else "",
        finding.oracle,
        str(len(reported.case.steps)),
        finding.confirmed,
        str(1 + summary.repeats.get(reported.id, 0)),
    ]
    return f"| {' | '.join(cells)} |"
