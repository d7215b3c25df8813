"""A run as a Markdown page, fit for the summary of a CI job."""

from __future__ import annotations

import re
from collections.abc import Sequence

from fuzzgraph.events import ReportedFinding, RunSummary
from fuzzgraph.finding import CLAUSES
from fuzzgraph.reporting.amounts import short
from fuzzgraph.reporting.ending import setup_line, verdict_line
from fuzzgraph.reporting.left_out import left_out, unchecked
from fuzzgraph.reporting.nights import Night
from fuzzgraph.reporting.sentences import sentence
from fuzzgraph.reporting.wording import finding_text

__all__ = ["markdown"]

_DAMAGE = "see *What did not run, and why*."
_IN_FULL = 20
"""Findings told in full; GitHub shows one megabyte of a summary."""


def markdown(summary: RunSummary, nights: Sequence[Night] = ()) -> str:
    """Figures, a table of findings, the first of them in full, what did not run, the trend."""
    parts = [f"# FuzzGraph run: {verdict_line(summary)}", _figures(summary)]
    if summary.error:
        parts.append(f"**The run failed:** `{summary.error}`")
    parts += [f"**Not checked:** {_escaped(line)}" for line in unchecked(summary.unchecked)]
    if summary.damaged:
        parts.append(f"**The log is damaged,** so that this is not all: {_DAMAGE}")
    if summary.findings:
        parts.append(_table(summary))
    parts += [
        f"## {_escaped(sentence(reported.finding))}\n\n```text\n{finding_text(reported)}\n```"
        for reported in summary.findings[:_IN_FULL]
    ]
    if summary.mended:
        lines = "\n".join(f"- {_escaped(line)}" for line in summary.mended)
        parts.append(f"## Tolerated, and no longer failing\n\n{lines}")
    if len(nights) > 1:
        parts.append(_nights(nights))
    missing = left_out(summary)
    if missing:
        rows = "\n".join(f"| {_escaped(what)} | {_escaped(why)} |" for what, why in missing)
        parts.append(f"## What did not run, and why\n\n| | |\n|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _escaped(text: str) -> str:
    """Text that Markdown prints as it is, also in a table."""
    return re.sub(r"([\\`*_\[\]<>|#])", r"\\\1", " ".join(text.split()))


def _figures(summary: RunSummary) -> str:
    coverage = summary.coverage
    rows = {
        "target": setup_line(summary.setup),
        "seed": summary.seed,
        "profile": summary.profile,
        "shards": summary.shards,
        "time": short(summary.seconds),
        "cases": f"{summary.cases} ({summary.corpus_cases} from the corpus)",
        "steps": summary.steps,
        "cases per second": f"{summary.rate:.0f}",
        "covered": f"{len(coverage.cases)} dimension values, {coverage.pairs} pairs of them, "
        f"{coverage.states} states",
        "skipped": summary.skipped,
        "nondeterministic": summary.nondeterministic,
        "engine deaths": summary.deaths,
        "ended by": summary.reason,
        "fuzzgraph": summary.fuzzgraph,
    }
    return "\n".join(
        ["| | |", "|---|---|", *(f"| {name} | {value} |" for name, value in rows.items())]
    )


def _table(summary: RunSummary) -> str:
    head = ["| finding | broken clause | buffer | oracle | steps | rate | cases with it | status |"]
    head.append("|---|---|---|---|---|---|---|---|")
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
        " ".join(filter(None, (reported.status, reported.issue))),
    ]
    return f"| {' | '.join(cells)} |"


def _nights(nights: Sequence[Night]) -> str:
    rows = [
        f"| {night.label}{' (cut short)' if night.failed else ''} | {night.findings} "
        f"| {len(night.fresh)} | {len(night.gone)} | {night.cases} |"
        for night in reversed(nights)
    ]
    head = "| night | findings | new | gone | cases |\n|---|---|---|---|---|"
    return "\n".join(["## Night after night", "", head, *rows])
