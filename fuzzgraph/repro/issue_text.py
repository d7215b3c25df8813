"""The finding as an issue: Markdown to paste, and nothing in it that was not seen."""

from __future__ import annotations

import platform
import re
from importlib.metadata import PackageNotFoundError, version

import torch

from fuzzgraph import __version__
from fuzzgraph.case import Case, digest
from fuzzgraph.escaping import code_span as code
from fuzzgraph.escaping import markdown_text
from fuzzgraph.events import Setup, finding_id
from fuzzgraph.finding import Finding
from fuzzgraph.repro.files import file_names
from fuzzgraph.repro.fuzzgraph_script import setup_words
from fuzzgraph.repro.wording import case_table, config_text, law, plain

__all__ = ["issue_text"]

_KNOWN = {
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


def issue_text(case: Case, finding: Finding, setup: Setup) -> str:
    """Title, what breaks, the case, what was measured, how to reproduce, environment."""
    names = file_names(finding_id(finding.key))
    lines = [
        f"# {_title(finding)}",
        "",
        "## What breaks",
        "",
        markdown_text(plain(finding.message)),
        "",
        law(finding),
        "",
        "## Minimal case",
        "",
        *_table(case),
        "",
        f"Engine config: {code(config_text(case.config))}",
        "",
        *_measured(finding),
        "## Reproduce",
        "",
        f"1. {code('python ' + names['script'])}: exit code 1 and the finding, 0 if it is"
        " gone. Its first lines say what it needs.",
        f"2. {code('pytest ' + names['pytest'])}: the same as a test, with FuzzGraph installed.",
        "",
        *_rate(finding),
        "## Environment",
        "",
        *(f"- {markdown_text(line)}" for line in environment(setup)),
        "",
        f"Found by FuzzGraph, oracle {code(finding.oracle)}, case {code(digest(case)[:12])}.",
    ]
    return "\n".join(lines) + "\n"


def _title(finding: Finding) -> str:
    """What happens, in few words."""
    buffer = plain(finding.buffer) or finding.stage
    what = {
        "red_zone_hit": f"write outside {buffer}",
        "foreign_write": f"write to memory of {buffer} that the batch does not own",
        "stray_access": f"kernel access outside {buffer}",
        "race": f"programs of a kernel race for {buffer}",
        "broken_contract": f"{buffer} does not hold what it must",
        "broken_form": f"{buffer} has the wrong shape or dtype",
        "missing": f"{buffer} is missing",
        "exception": f"exception at {finding.stage}",
        "hang": f"hang at {finding.stage}",
    }.get(finding.symptom, _MISMATCH[finding.clause].format(buffer))
    run = "eager run" if finding.stage == "eager" else "graph replay"
    return markdown_text(f"{plain(finding.target)}: {what} ({run}, mode {finding.mode})")


_MISMATCH = {
    "reads": "{} depends on memory that the batch does not name",
    "writes": "{} is written where it must not be",
    "computes": "{} is wrong",
    "history": "{} depends on what was replayed before",
    "metadata": "{} does not hold what it must",
    "survives": "the run does not come back ({})",
}


def _table(case: Case) -> list[str]:
    rows = [re.split(r"  +", line, maxsplit=4) for line in case_table(case)]
    return [
        f"| {' | '.join(map(markdown_text, rows[0]))} |",
        "|" + "---|" * len(rows[0]),
        *(f"| {' | '.join(map(markdown_text, row))} |" for row in rows[1:]),
    ]


def _measured(finding: Finding) -> list[str]:
    """Expected, got and lines, as far as the oracle told them apart."""
    known = [(_KNOWN[name], value) for name, value in finding.detail.items() if name in _KNOWN]
    if not known:
        return []
    facts = [f"- {name}: {code(plain(str(value)))}" for name, value in known]
    return ["## Measured", "", *facts, ""]


def _rate(finding: Finding) -> list[str]:
    if not finding.confirmed:
        return []
    return [f"It showed in {markdown_text(finding.confirmed)} fresh sessions.", ""]


def environment(setup: Setup) -> list[str]:
    """Versions and device, as they are here."""
    lines = [f"FuzzGraph {__version__}, {', '.join(setup_words(setup)) or 'built-in engine'}"]
    lines.append(f"torch {torch.__version__}, {_triton()}")
    lines.append(f"Python {platform.python_version()}, {platform.system()} {platform.machine()}")
    if setup.device != "cpu" and torch.cuda.is_available():
        runtime = f"ROCm {torch.version.hip}" if torch.version.hip else f"CUDA {torch.version.cuda}"
        lines.append(f"{torch.cuda.get_device_name(0)}, {runtime}")
    else:
        lines.append("CPU; graphs captured and replayed by FuzzGraph's recorder")
    return lines


def _triton() -> str:
    try:
        return f"triton {version('triton')}"
    except PackageNotFoundError:
        return "no triton"
