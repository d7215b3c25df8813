"""Findings of a run that seem to have one cause, put below the worst of them.

A guess from the records alone, and a careful one: two findings are put together only where
something beside their nearness links them. Nothing is hidden by it: each finding keeps its id, its
case and its weight in the exit code.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import get_args

from fuzzgraph.case import Case, Mode, raw_size, replayed_size
from fuzzgraph.finding import Finding, by_severity
from fuzzgraph.run.events import ReportedFinding
from fuzzgraph.text.finding_text import observed

_KINDS_OF_STEP = {*get_args(Mode), "eager", "graph"}
"""What engines put before the name of a buffer that they have once for each kind of step."""
_NUMBER = re.compile(r"-?\d+")
_SELDOM = 10
"""Cases that were run before a finding came up. One that shows in a quarter of all cases comes
later than that once in eighteen times, so what did is not just beside everything."""


@dataclass(slots=True)
class Cause:
    """One entry of a report: the worst finding, and what else seems to come from its cause."""

    lead: ReportedFinding
    others: list[tuple[ReportedFinding, str]] = field(default_factory=list)
    """Each with the reason that it is here."""

    @property
    def members(self) -> list[ReportedFinding]:
        return [self.lead, *(other for other, _ in self.others)]


def causes(findings: Iterable[ReportedFinding]) -> list[Cause]:
    """Every finding once, in entries; the worst entry first, in each the worst finding first."""
    entries: list[Cause] = []
    for reported in sorted(findings, key=lambda one: by_severity(one.finding)):
        entry, why = _entry_of(reported, entries)
        if entry is None:
            entries.append(Cause(reported))
        else:
            entry.others.append((reported, why))
    return entries


def ranked(findings: Iterable[ReportedFinding]) -> list[ReportedFinding]:
    """Every finding once, in the order of `causes`."""
    return [one for entry in causes(findings) for one in entry.members]


def _entry_of(reported: ReportedFinding, entries: Sequence[Cause]) -> tuple[Cause | None, str]:
    for entry in entries:
        for member in entry.members:
            if why := _link(member, reported):
                return entry, why
    return None, ""


def _link(one: ReportedFinding, other: ReportedFinding) -> str:
    """Why the two seem to have one cause; '' where nothing says so."""
    first, second = one.finding, other.finding
    if first.target != second.target:
        return ""
    if (line := _line(first)) and line == _line(second):
        return f"same line, {line}"
    both_ways = _shows(one, second) and _shows(other, first)
    if (buffer := _buffer(first)) and buffer == _buffer(second):
        if (pattern := _pattern(first)) and pattern == _pattern(second):
            return f"same fault of {buffer} in another kind of step"
        if both_ways or one.digest == other.digest:
            return f"same buffer, {buffer}, broken by the same case"
    if _comes_with(other, one):
        return f"its smallest case also shows {one.id}"
    return f"it also shows in the smallest case of {one.id}" if _comes_with(one, other) else ""


def _comes_with(effect: ReportedFinding, cause: ReportedFinding) -> bool:
    seldom = cause.after_cases > _SELDOM or _needs_more_than_any_case(cause.case)
    return seldom and _shows(effect, cause.finding, at_once=True)


def _shows(reported: ReportedFinding, finding: Finding, *, at_once: bool = False) -> bool:
    """Whether the case of one finding shows another; only a shrunk case says something by it.

    Args:
        at_once: at the step of the first one.
    """
    if "shrink" in reported.left:
        return False
    return any(
        other.key == finding.key and (not at_once or other.step == reported.finding.step)
        for other in reported.also
    )


def _needs_more_than_any_case(case: Case) -> bool:
    """Whether a shrunk case has a past or padded rows.

    What one step of live rows shows is there in nearly every case, beside anything else: that it is
    seen with another finding says nothing.
    """
    first, *later = case.steps
    padded = replayed_size(case.config, first)
    return bool(later) or (padded is not None and padded > raw_size(first))


def _line(finding: Finding) -> str:
    """The source line at fault, where one is known: of an exception, or of an access."""
    if finding.symptom == "exception":
        error = str(finding.detail.get("error", "")).partition(":")[0]
        where = str(finding.detail.get("where", ""))
        return f"{error} at {where}" if where else ""
    if finding.symptom == "kernel_error":
        return finding.buffer
    if finding.symptom in ("stray_access", "race", "freed_memory"):
        verb = "reads" if finding.clause == "reads" else "writes"
        return f"{finding.detail.get('kernel')} {verb} at {finding.detail.get('source')}"
    return ""


def _buffer(finding: Finding) -> str:
    """The buffer without kind and number of a step: 'decode.2.kv_indices' is kv_indices."""
    words = finding.buffer.split(".")
    return ".".join(word for word in words if word not in _KINDS_OF_STEP and not word.isdigit())


def _pattern(finding: Finding) -> tuple[str, ...]:
    """What is wrong, without numbers and kind of step; () where the record does not say.

    A wrong value of an output says nothing of what made it wrong: two of them have no pattern.
    """
    buffer = _buffer(finding)
    if finding.symptom == "red_zone_hit":
        known = (finding.detail.get(name, "") for name in ("side", "allocated_at"))
        return (finding.symptom, *map(str, known))
    if finding.symptom in ("broken_contract", "broken_form"):
        told = observed(finding).replace(finding.buffer, buffer)
        return (finding.oracle, finding.symptom, _NUMBER.sub("#", told))
    if "left_over" in finding.detail:  # the buffer that was not rewritten
        return (finding.oracle, str(finding.detail["left_over"]).rpartition(".")[2])
    for late_copies in ("copied_at", "arrives_at", "side_work_at"):
        if late_copies in finding.detail:
            return (finding.oracle, str(finding.detail[late_copies]))
    if "kept_from" in finding.detail:  # a result that is a view of a buffer of the engine
        return (finding.oracle, "kept")
    return ()
