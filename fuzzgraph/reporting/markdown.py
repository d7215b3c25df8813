"""A run as a Markdown page, fit for the summary of a CI job."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzgraph.finding import CLAUSES
from fuzzgraph.reporting.causes import causes, ranked
from fuzzgraph.reporting.plain_text import finding_text
from fuzzgraph.reporting.skipped import not_run, unchecked
from fuzzgraph.reporting.summary_text import (
    NEXT,
    duration_text,
    setup_line,
    stop_reason,
    verdict_line,
)
from fuzzgraph.reporting.trend import TrendPoint
from fuzzgraph.run.environment import environment_lines
from fuzzgraph.run.events import ReportedFinding, RunSummary
from fuzzgraph.text.escaping import code_block, code_cell, code_span, web_link
from fuzzgraph.text.escaping import markdown_text as plain
from fuzzgraph.text.finding_text import sentence

_DAMAGE = "see *What did not run, and why*."
_IN_FULL = 20
"""Findings told in full; GitHub shows one megabyte of a summary."""


def markdown(summary: RunSummary, nights: Sequence[TrendPoint] = ()) -> str:
    """Figures, a table of findings, the first of them in full, what did not run, the trend."""
    parts = [f"# FuzzGraph run: {plain(verdict_line(summary))}", _figures(summary)]
    if summary.error:
        parts.append(f"**The run failed:** {code_span(summary.error)}")
    parts += [f"**Not checked:** {plain(line)}" for line in unchecked(summary.unchecked)]
    if summary.damaged:
        parts.append(f"**The log is damaged,** so that this is not all: {_DAMAGE}")
    if summary.findings:
        parts.append(_table(summary))
    parts += [
        f"## {plain(sentence(reported.finding))}\n\n{code_block(finding_text(reported))}"
        for reported in ranked(summary.findings)[:_IN_FULL]
    ]
    if summary.findings:
        parts.append(f"**Next:** {plain(NEXT)}.")
    if summary.mended:
        lines = "\n".join(f"- {plain(line)}" for line in summary.mended)
        parts.append(f"## Tolerated, and no longer failing\n\n{lines}")
    if len(nights) > 1:
        parts.append(_nights(nights))
    missing = not_run(summary)
    if missing:
        rows = "\n".join(f"| {plain(what)} | {plain(why)} |" for what, why in missing)
        parts.append(f"## What did not run, and why\n\n| | |\n|---|---|\n{rows}")
    return "\n\n".join(parts) + "\n"


def _figures(summary: RunSummary) -> str:
    coverage = summary.coverage
    rows = {
        "target": setup_line(summary.setup),
        "seed": summary.seed,
        "profile": summary.profile,
        "shards": summary.shards,
        "time": duration_text(summary),
        "cases": f"{summary.cases} ({summary.corpus_cases} from the corpus)",
        "steps": summary.steps,
        "cases per second": f"{summary.rate:.0f}",
        "covered": f"{len(coverage.cases)} dimension values, {coverage.pairs} pairs of them",
        "skipped": summary.skipped,
        "nondeterministic": summary.nondeterministic,
        "engine deaths": summary.deaths,
        "stopped": stop_reason(summary),
        "environment": "; ".join(environment_lines(summary.environment)),
        "fuzzgraph": summary.fuzzgraph,
    }
    return "\n".join(
        [
            "| | |",
            "|---|---|",
            *(f"| {name} | {plain(str(value))} |" for name, value in rows.items()),
        ]
    )


def _table(summary: RunSummary) -> str:
    head = [
        "| finding | severity | broken clause | buffer | oracle | steps | rate | cases with it"
        " | cause | status |",
        "|---|---|---|---|---|---|---|---|---|---|",
    ]
    rows = [
        _row(summary, reported, number)
        for number, entry in enumerate(causes(summary.findings), start=1)
        for reported in entry.members
    ]
    return "\n".join([*head, *rows])


def _row(summary: RunSummary, reported: ReportedFinding, cause: int) -> str:
    finding = reported.finding
    cells = [
        f"[{reported.id}](findings/{reported.id}/case.json)",
        finding.severity,
        CLAUSES[finding.clause],
        code_cell(finding.buffer),
        plain(finding.oracle),
        str(len(reported.case.steps)),
        plain(finding.confirmed),
        str(1 + summary.repeats.get(reported.id, 0)),
        str(cause),
        " ".join(filter(None, (reported.status, web_link(reported.issue)))),
    ]
    return f"| {' | '.join(cells)} |"


def _nights(nights: Sequence[TrendPoint]) -> str:
    rows = [
        f"| {plain(night.label)}{' (cut short)' if night.failed else ''} | {night.findings} "
        f"| {len(night.fresh)} | {len(night.gone)} | {night.cases} |"
        for night in reversed(nights)
    ]
    head = "| night | findings | new | gone | cases |\n|---|---|---|---|---|"
    return "\n".join(["## Night after night", "", head, *rows])
