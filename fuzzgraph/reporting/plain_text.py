"""A finding as plain text, for a terminal, a log, JUnit and a failure of pytest."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from fuzzgraph.finding import Finding
from fuzzgraph.reporting.skipped import execution_text, undone_text
from fuzzgraph.run.environment import Environment, environment_lines
from fuzzgraph.run.events import Export, ReportedFinding
from fuzzgraph.text.case_text import case_table, config_line
from fuzzgraph.text.escaping import one_line
from fuzzgraph.text.finding_text import (
    buffer_text,
    confirmation,
    effect_text,
    headline,
    kernel_error_lines,
    line_text,
    observed,
    place,
    rule,
    sentence,
    unguarded_text,
    untold_lines,
)
from fuzzgraph.text.numbers import counted

Rows = list[tuple[str, str]]
"""A word and what it introduces; an empty word continues the row above."""


def finding_text(reported: ReportedFinding, environment: Environment | None = None) -> str:
    """The whole finding, without a line of the harness.

    Args:
        environment: where it was seen; None where the text around it says so.
    """
    lines_of = [] if environment is None else environment_lines(environment)
    seen_on = [("seen on", "; ".join(lines_of))]
    table = case_table(reported.case, mark=reported.finding.step)
    lines = [
        *finding_head(reported.finding),
        *_aligned(_status(reported)),
        "",
        *(f"  {line}".rstrip() for line in table),
        "",
        *_aligned([*_case(reported), *seen_on, *_files(reported)]),
    ]
    return "\n".join(map(one_line, lines))


def finding_head(finding: Finding) -> list[str]:
    """Its sentence, what was observed, the rule, and how sure that is; each is said once."""
    said = observed(finding)
    rows = [
        ("observed", "" if said in sentence(finding) else said),
        ("effect", effect_text(finding)),
        ("rule", f"{rule(finding)} (oracle {finding.oracle})"),
        ("buffer", buffer_text(finding)),
        *(("" if n else "lines", line_text(one)) for n, one in enumerate(untold_lines(finding))),
        *(("" if n else "kernels", one) for n, one in enumerate(kernel_error_lines(finding))),
        ("where", f"{place(finding)}, target {finding.target}"),
        ("sure", confirmation(finding)),
    ]
    if beside := unguarded_text(finding):
        rows.append(("note", beside))
    if finding.symptom == "nan_mismatch":
        rows.append(("note", "only NaN in memory that the batch does not own shows this"))
    return [one_line(line) for line in [headline(finding), *_aligned(rows)]]


def finding_brief(reported: ReportedFinding, why: str) -> str:
    """A finding below the one that has the same cause: sentence, id and the way to replay it."""
    rows = [("because", why), ("id", reported.id), ("replay", reported.replay)]
    lines = [headline(reported.finding), *_aligned([*_status(reported), *rows])]
    return "\n".join(one_line(f"    {line}") for line in lines)


def _status(reported: ReportedFinding) -> Rows:
    if reported.status == "new":
        return []
    return [("status", f"{reported.status}, does not count as new {reported.issue}".rstrip())]


def _case(reported: ReportedFinding) -> Rows:
    rows = [("config", config_line(reported.case.config))]
    for index, other in enumerate(reported.also):
        rows.append(("" if index else "also", f"{sentence(other)} (oracle {other.oracle})"))
    return rows


def _files(reported: ReportedFinding) -> Rows:
    how = []
    if reported.after_cases:
        how.append(f"after {counted(reported.after_cases, 'case')}, {reported.after_seconds:.1f} s")
    if reported.shrink_tries:
        tries = counted(reported.shrink_tries, "try")
        how.append(f"shrunk in {tries}, {reported.shrink_seconds:.1f} s")
    return [
        ("id", reported.id),
        ("found", "; ".join(how)),
        ("case", reported.case_path),
        *((export.kind, _exported(export, reported.case_path)) for export in reported.exports),
        ("undone", f"{undone_text(reported)} (out of time)" if reported.left else ""),
        ("replay", reported.replay),
    ]


def _exported(export: Export, case_path: str) -> str:
    """Its name, with the folder where that is not the one of the case."""
    folder, _, name = export.path.rpartition("/")
    path = name if folder == case_path.rpartition("/")[0] else export.path
    if export.error:
        return f"{path} ({export.error})" if path else f"none: {export.error}"
    how = execution_text(export)
    return f"{path} ({how})" if how else path


def _aligned(rows: Sequence[tuple[str, str]]) -> list[str]:
    """The rows that say something, below each other."""
    return [f"  {word:<8} {text}" for word, text in rows if text]


def as_json(value: object) -> str:
    """Indented JSON of a record."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2).decode()
