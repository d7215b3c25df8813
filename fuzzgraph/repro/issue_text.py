"""The finding as an issue: Markdown to paste, and nothing in it that was not seen."""

from __future__ import annotations

from fuzzgraph import __version__
from fuzzgraph.case import Case, digest
from fuzzgraph.finding import SEVERITIES, Finding
from fuzzgraph.repro.files import file_names
from fuzzgraph.repro.fuzzgraph_script import setup_words
from fuzzgraph.repro.wording import plain
from fuzzgraph.run.environment import UNKNOWN, Environment, environment_lines
from fuzzgraph.run.events import Setup, finding_id
from fuzzgraph.text.case_text import case_cells, config_line
from fuzzgraph.text.escaping import code_span as code
from fuzzgraph.text.escaping import markdown_text
from fuzzgraph.text.finding_text import (
    confirmation,
    kernel_error_lines,
    law,
    sentence,
    untold_lines,
    with_paths,
)

_KNOWN = {
    "engine_buffer": "Engine's buffer",
    "allocated_at": "Allocated at",
    "where": "Raised at",
    "error": "Error",
    "blamed": "Read from",
    "payload": "Elements of the buffer",
    "elements": "Elements written outside",
    "reach": "Farthest of them, counted from the buffer's edge",
    "index": "First differing element",
    "want": "Expected",
    "got": "Got",
    "indices": "Rows",
    "count": "Elements that differ",
}


def issue_text(
    case: Case, finding: Finding, setup: Setup, environment: Environment = UNKNOWN
) -> str:
    """Title, what breaks, the case, what was measured, how to reproduce, environment."""
    names = file_names(finding_id(finding.key))
    lines = [
        f"# {_title(finding)}",
        "",
        "## What breaks",
        "",
        markdown_text(plain(with_paths(finding.message, finding))),
        "",
        law(finding),
        "",
        f"Severity: {finding.severity} ({SEVERITIES[finding.severity]}).",
        "",
        "## Minimal case",
        "",
        *_table(case, finding.step),
        "",
        f"Engine config: {code(config_line(case.config))}",
        "",
        *_measured(finding),
        "## Reproduce",
        "",
        f"1. {code('python ' + names['script'])}: exit code 1 and the finding, 0 if it is"
        " gone. Its first lines say what it needs.",
        f"2. {code('pytest ' + names['pytest'])}: the same as a test, with FuzzGraph installed.",
        "",
        *_confirmed(finding),
        "## Environment",
        "",
        *(f"- {markdown_text(line)}" for line in _environment(setup, environment)),
        "",
        f"Found by FuzzGraph, oracle {code(finding.oracle)}, case {code(digest(case)[:12])}.",
    ]
    return "\n".join(lines) + "\n"


def _title(finding: Finding) -> str:
    return markdown_text(f"{finding.target}: {sentence(finding)}")


def _table(case: Case, step: int) -> list[str]:
    """The steps; the one that breaks the law in bold."""
    header, *rows = case_cells(case)
    lines = [
        f"| {' | '.join(map(markdown_text, header))} |",
        "|" + "---|" * len(header),
    ]
    for index, row in enumerate(rows):
        cells = [markdown_text(cell) for cell in row]
        shown = [f"**{cell}**" for cell in cells] if index == step else cells
        lines.append(f"| {' | '.join(shown)} |")
    return lines


def _measured(finding: Finding) -> list[str]:
    """Expected, got and lines, as far as the oracle told them apart."""
    told = {line.short for line in finding.lines}
    known = [
        (_KNOWN[name], value)
        for name, value in finding.detail.items()
        if name in _KNOWN and str(value) not in told
    ]
    facts = [f"- {name}: {code(plain(str(value)))}" for name, value in known]
    facts += [
        f"- {code(plain(str(line)))} {markdown_text(plain(line.does))}"
        for line in untold_lines(finding)
    ]
    facts += [f"- compute-sanitizer, {markdown_text(line)}" for line in kernel_error_lines(finding)]
    if not facts:
        return []
    return ["## Measured", "", *facts, ""]


def _confirmed(finding: Finding) -> list[str]:
    said = confirmation(finding)
    return [f"The case {markdown_text(said)}.", ""] if said else []


def _environment(setup: Setup, environment: Environment) -> list[str]:
    asked = ", ".join(setup_words(setup)) or "built-in engine"
    graphs = "graphs captured and replayed by FuzzGraph's recorder"
    recorded = [graphs] if setup.graphs == "recorder" else []
    return [*environment_lines(environment), *recorded, f"FuzzGraph {__version__}, {asked}"]
