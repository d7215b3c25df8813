"""A run as JUnit XML: one test for the campaign, one that failed for each finding."""

from __future__ import annotations

import re
from xml.etree import ElementTree

from fuzzgraph.finding import CLAUSES
from fuzzgraph.reporting.causes import causes
from fuzzgraph.reporting.plain_text import finding_text
from fuzzgraph.reporting.summary_text import figures_text, setup_line
from fuzzgraph.run.environment import environment_lines
from fuzzgraph.run.events import ReportedFinding, RunSummary
from fuzzgraph.text.escaping import visible
from fuzzgraph.text.finding_text import sentence

_NO_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")
"""What XML 1.0 cannot hold, not even escaped: an engine's log may have it."""


def junit(summary: RunSummary) -> bytes:
    """The document with its declaration; findings that do not count are skipped tests."""
    counted = [one for one in summary.findings if summary.counts(one)]
    suite = ElementTree.Element(
        "testsuite",
        name="fuzzgraph",
        tests=str(1 + len(summary.findings)),
        failures=str(len(counted)),
        errors=str(len(_errors(summary))),
        skipped=str(len(summary.findings) - len(counted)),
        time=f"{summary.total_seconds:.3f}",
    )
    if summary.started:
        suite.set("timestamp", summary.started[:19])
    _properties(suite, summary)
    _campaign(suite, summary)
    for entry in causes(summary.findings):
        for reported in entry.members:
            _finding(suite, summary, reported, entry.lead.id)
    root = ElementTree.Element("testsuites")
    root.append(suite)
    _clean(root)
    ElementTree.indent(root)
    body: bytes = ElementTree.tostring(root, encoding="utf-8", xml_declaration=True)
    return body + b"\n"


def _properties(suite: ElementTree.Element, summary: RunSummary) -> None:
    figures = {
        "setup": setup_line(summary.setup),
        "seed": summary.seed,
        "cases": summary.cases,
        "cases_per_second": summary.rate,
        "pairs_covered": summary.coverage.pairs,
        "environment": "; ".join(environment_lines(summary.environment)),
        "fuzzgraph": summary.fuzzgraph,
    }
    group = ElementTree.SubElement(suite, "properties")
    for name, value in figures.items():
        ElementTree.SubElement(group, "property", name=name, value=str(value))


def _campaign(suite: ElementTree.Element, summary: RunSummary) -> None:
    test = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"fuzzgraph.{summary.setup.target}",
        name="campaign",
        time=f"{summary.total_seconds:.3f}",
    )
    for line in _errors(summary):
        ElementTree.SubElement(test, "error", message=line).text = line
    ElementTree.SubElement(test, "system-out").text = figures_text(summary)


def _errors(summary: RunSummary) -> list[str]:
    """Why the run says less than it should; a test has one error at most."""
    damage = f"the log is damaged: {'; '.join(summary.damaged)}" if summary.damaged else ""
    return ["; ".join(filter(None, (summary.error, damage)))] if summary.error or damage else []


def _finding(
    suite: ElementTree.Element, summary: RunSummary, reported: ReportedFinding, cause: str
) -> None:
    test = ElementTree.SubElement(
        suite,
        "testcase",
        classname=f"fuzzgraph.{summary.setup.target}.{reported.finding.oracle}",
        name=reported.id,
        time=f"{reported.shrink_seconds:.3f}",
    )
    group = ElementTree.SubElement(test, "properties")
    for name, value in (("severity", reported.finding.severity), ("cause", cause)):
        ElementTree.SubElement(group, "property", name=name, value=value)
    message = sentence(reported.finding)
    if not summary.counts(reported):
        why = f"{reported.status} {reported.issue}".strip()
        ElementTree.SubElement(test, "skipped", message=f"{why}: {message}")
        return
    kind = CLAUSES[reported.finding.clause]
    failure = ElementTree.SubElement(test, "failure", message=message, type=kind)
    failure.text = finding_text(reported)


def _clean(element: ElementTree.Element) -> None:
    """Leave in no place of the document what XML cannot hold or a reader would not see."""
    for one in element.iter():
        one.text = _cleaned(one.text) if one.text else one.text
        for name, value in one.attrib.items():
            one.set(name, _cleaned(value))


def _cleaned(text: str) -> str:
    return _NO_XML.sub("\N{REPLACEMENT CHARACTER}", visible(text))
