"""Findings as SARIF 2.1.0, for code hosts that show and compare them.

One rule for each clause of the law. A result is the same from night to night by its fingerprint,
which is the key of the finding and holds no line. The level follows the severity, flaky ones are
warnings, tolerated ones are suppressed with their issue. A result lies at the engine's line that
tells most, else at its case; the history of the case is its code flow.
"""

from __future__ import annotations

import hashlib
from typing import Any

from fuzzgraph.finding import CLAUSES, SEVERITIES, Clause, Finding, Severity, severity_of
from fuzzgraph.reporting.causes import causes
from fuzzgraph.reporting.sarif_places import (
    at_case,
    base_ids,
    each_text,
    locations,
    related,
    without_folders,
)
from fuzzgraph.reporting.skipped import killed_text
from fuzzgraph.run.environment import environment_lines
from fuzzgraph.run.events import ReportedFinding, RunSummary
from fuzzgraph.text.case_text import case_table, config_line
from fuzzgraph.text.escaping import visible
from fuzzgraph.text.finding_text import (
    LAW,
    RULES,
    confirmation,
    effect_text,
    observed,
    sentence,
)

SCHEMA = "https://json.schemastore.org/sarif-2.1.0.json"
_RULES: tuple[Clause, ...] = tuple(CLAUSES)
_LEVELS: dict[Severity, str] = {
    "critical": "error",
    "high": "error",
    "medium": "warning",
    "low": "warning",
}
"""SARIF's `note` is kept for what is tolerated."""


def sarif(summary: RunSummary) -> dict[str, Any]:
    """The log of one run, ready for JSON."""
    log = {
        "$schema": SCHEMA,
        "version": "2.1.0",
        "runs": [
            {
                "tool": {"driver": _driver(summary)},
                "automationDetails": {"id": f"fuzzgraph/{summary.setup.target}/"},
                "originalUriBaseIds": base_ids(summary),
                "invocations": [_invocation(summary)],
                "properties": {"environment": environment_lines(summary.environment)},
                "results": [
                    _result(summary, reported, entry.lead.id)
                    for entry in causes(summary.findings)
                    for reported in entry.members
                ],
                "columnKind": "unicodeCodePoints",
            }
        ],
    }
    shown: dict[str, Any] = each_text(without_folders(log, summary), visible)
    return shown


def _driver(summary: RunSummary) -> dict[str, Any]:
    return {
        "name": "FuzzGraph",
        "semanticVersion": summary.fuzzgraph,
        "rules": [_rule(clause) for clause in _RULES],
    }


def _rule(clause: Clause) -> dict[str, Any]:
    return {
        "id": clause,
        "name": f"Replay{clause.title()}",
        "shortDescription": {"text": f"{RULES[clause][0].upper()}{RULES[clause][1:]}."},
        "fullDescription": {"text": LAW},
        "defaultConfiguration": {"level": _LEVELS[severity_of(clause)]},
        "properties": {"tags": ["correctness", "gpu-graph"], "precision": "very-high"},
    }


def _invocation(summary: RunSummary) -> dict[str, Any]:
    invocation: dict[str, Any] = {
        "executionSuccessful": not (summary.error or summary.damaged),
        "exitCode": summary.exit_code,
        "toolExecutionNotifications": [
            {"level": "warning", "message": {"text": line}} for line in _warnings(summary)
        ],
    }
    invocation["toolExecutionNotifications"] += [
        {"level": "error", "message": {"text": line}}
        for line in (summary.error, *summary.damaged)
        if line
    ]
    if summary.started:
        invocation["startTimeUtc"] = summary.started.replace("+00:00", "Z")
    return invocation


def _warnings(summary: RunSummary) -> tuple[str, ...]:
    killed = (killed_text(summary.killed),) if summary.killed else ()
    return (*killed, *summary.bad_entries)


def _result(summary: RunSummary, reported: ReportedFinding, cause: str) -> dict[str, Any]:
    finding = reported.finding
    result: dict[str, Any] = {
        "ruleId": finding.clause,
        "ruleIndex": _RULES.index(finding.clause),
        "level": _level(reported),
        "rank": _rank(finding),
        "message": {"text": _message(reported)},
        "locations": locations(reported),
        "partialFingerprints": _fingerprints(reported),
        "baselineState": "unchanged" if reported.status == "known" else "new",
        "codeFlows": [{"threadFlows": [{"locations": _steps(reported)}]}],
        "occurrenceCount": 1 + summary.repeats.get(reported.id, 0),
        "properties": {
            "id": reported.id,
            "severity": finding.severity,
            "cause": cause,
            "oracle": finding.oracle,
            "symptom": finding.symptom,
            "stage": finding.stage,
            "step": finding.step,
            "mode": finding.mode,
            "target": finding.target,
            "confirmed": finding.confirmed,
            "unserved": finding.unserved,
            "config": config_line(reported.case.config),
            "case": reported.digest,
            "replay": reported.replay,
        },
    }
    if places := related(reported):
        result["relatedLocations"] = places
    if reported.status == "tolerated":
        result["suppressions"] = [
            {"kind": "external", "status": "accepted", "justification": reported.issue}
        ]
    return result


def _level(reported: ReportedFinding) -> str:
    if reported.status == "tolerated":
        return "note"
    doubtful = reported.flaky or reported.finding.unserved
    return "warning" if doubtful else _LEVELS[reported.finding.severity]


def _rank(finding: Finding) -> float:
    """SARIF's priority, 0.0 to 100.0: 100, 75, 50 and 25, and 0 for what no server can meet."""
    served = not finding.unserved
    return served * (100.0 - 25.0 * list(SEVERITIES).index(finding.severity))


def _message(reported: ReportedFinding) -> str:
    finding = reported.finding
    said, seen, effect = sentence(finding), observed(finding), effect_text(finding)
    parts = [said, "" if seen in said else seen, f"{effect[:1].upper()}{effect[1:]}"]
    sure = confirmation(finding)
    parts.append(f"{sure[:1].upper()}{sure[1:]}")
    return " ".join(f"{part}." for part in parts if part)


def _fingerprints(reported: ReportedFinding) -> dict[str, str]:
    """The key of the finding, also under the one name that GitHub compares.

    GitHub's uploader would compute that from the text of the line, which an edit changes.
    """
    key = hashlib.sha256("\0".join(reported.finding.key).encode()).hexdigest()
    return {"findingKey/v1": key, "primaryLocationLineHash": f"{key[:16]}:1"}


def _steps(reported: ReportedFinding) -> list[dict[str, Any]]:
    """The history as a flow; the step that broke the law is the essential one."""
    _, *lines = case_table(reported.case)
    flow = []
    for index, line in enumerate(lines):
        location = at_case(reported) | {"message": {"text": " ".join(line.split())}}
        broken = index == max(reported.finding.step, 0)
        flow.append(
            {
                "location": location,
                "executionOrder": index + 1,
                "importance": "essential" if broken else "important",
            }
        )
    return flow
