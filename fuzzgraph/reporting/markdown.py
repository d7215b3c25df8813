"""A run as a Markdown page, fit for the summary of a CI job and the comment on a pull request."""

from __future__ import annotations

from collections.abc import Sequence

from fuzzgraph.finding import Finding
from fuzzgraph.reporting.causes import causes, ranked
from fuzzgraph.reporting.plain_text import finding_text
from fuzzgraph.reporting.skipped import not_run, unchecked_of_run
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
from fuzzgraph.text.finding_text import RULES, title
from fuzzgraph.text.numbers import counted

_DAMAGE = "see *What did not run, and why*."
LONGEST = 65_536
"""Characters of the page: GitHub takes as many in a comment."""
_LONGEST_LINE, _LONGEST_PART, _LONGEST_TABLE = 2_000, 8_000, 16_000
_ALL = "`report.html` has all."


def markdown(summary: RunSummary, nights: Sequence[TrendPoint] = ()) -> str:
    """Findings in a table and as many in full as fit, figures, what did not run, the trend.

    At most `LONGEST` characters; what is left out for that is said.
    """
    head = [f"# FuzzGraph run: {_cut(plain(verdict_line(summary)))}"]
    if summary.error:
        head.append(f"**The run failed:** {code_span(_cut(summary.error))}")
    missed = [f"**Not checked:** {_cut(plain(line))}" for line in unchecked_of_run(summary)]
    if missed:
        head.append(_within("\n\n".join(missed), _LONGEST_PART))
    if summary.damaged:
        head.append(f"**The log is damaged,** so that this is not all: {_DAMAGE}")
    if summary.findings:
        head.append(_within(_table(summary), _LONGEST_TABLE))
    tail = [_within(part, _LONGEST_PART) for part in _after_findings(summary, nights)]
    room = LONGEST - sum(len(part) + 2 for part in (*head, *tail))
    return "\n\n".join([*head, *_in_full(summary, room), *tail]) + "\n"


def _after_findings(summary: RunSummary, nights: Sequence[TrendPoint]) -> list[str]:
    parts = [f"**Next:** {plain(NEXT)}."] if summary.findings else []
    parts.append(_figures(summary))
    if summary.mended:
        lines = "\n".join(f"- {_cut(plain(line))}" for line in summary.mended)
        parts.append(f"## Tolerated, and no longer failing\n\n{lines}")
    if len(nights) > 1:
        parts.append(_nights(nights))
    missing = not_run(summary)
    if missing:
        rows = "\n".join(f"| {_cut(plain(what))} | {_cut(plain(why))} |" for what, why in missing)
        parts.append(f"## What did not run, and why\n\n| | |\n|---|---|\n{rows}")
    return parts


def _in_full(summary: RunSummary, room: int) -> list[str]:
    """The findings that fit, the worst first, and how many do not."""
    parts: list[str] = []
    found = ranked(summary.findings)
    room -= len(_left_out(len(found), len(found))) + 2
    for reported in found:
        heading = _cut(plain(title(reported.finding)))
        text = "\n".join(map(_cut, finding_text(reported).splitlines()))
        part = f"## {heading}\n\n{code_block(_within(text, _LONGEST_TABLE))}"
        room -= len(part) + 2
        if room < 0:
            return [*parts, _left_out(len(found) - len(parts), len(found))]
        parts.append(part)
    return parts


def _left_out(count: int, of: int) -> str:
    return f"**Left out here:** the text of {count} of {counted(of, 'finding')}; {_ALL}"


def _cut(line: str) -> str:
    """The beginning of a very long line."""
    return line if len(line) <= _LONGEST_LINE else f"{line[: _LONGEST_LINE - 1]}…"


def _within(text: str, most: int) -> str:
    """The first lines of a text, and how many more there are."""
    lines, size = text.split("\n"), 0
    for kept, line in enumerate(lines):
        size += len(line) + 1
        if size > most:
            return "\n".join(
                [*lines[:kept], "", f"{counted(len(lines) - kept, 'more line')}; {_ALL}"]
            )
    return text


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
        "| finding | severity | broken rule | buffer | line | oracle | steps | rate"
        " | cases with it | cause | status |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
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
        RULES[finding.clause],
        code_cell(finding.buffer),
        _line_cell(finding),
        plain(finding.oracle),
        str(len(reported.case.steps)),
        _confirmed_cell(finding),
        str(1 + summary.repeats.get(reported.id, 0)),
        str(cause),
        " ".join(filter(None, (reported.status, web_link(reported.issue)))),
    ]
    return f"| {' | '.join(cells)} |"


def _confirmed_cell(finding: Finding) -> str:
    """The rate, and the word that no finding without a server goes without."""
    return plain(", ".join(filter(None, (finding.confirmed, finding.unserved and "no server"))))


def _line_cell(finding: Finding) -> str:
    """The engine's line that tells most."""
    return code_cell(f"{finding.lines[0].path}:{finding.lines[0].line}") if finding.lines else ""


def _nights(nights: Sequence[TrendPoint]) -> str:
    rows = [
        f"| {plain(night.label)}{' (cut short)' if night.failed else ''} | {night.findings} "
        f"| {len(night.fresh)} | {len(night.gone)} | {night.cases} |"
        for night in reversed(nights)
    ]
    head = "| night | findings | new | gone | cases |\n|---|---|---|---|---|"
    return "\n".join(["## Night after night", "", head, *rows])
