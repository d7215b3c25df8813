"""What a script measures, one module for each oracle, and which check shows which finding."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.finding import Finding
from fuzzgraph.repro.checks.base import ScriptCheck
from fuzzgraph.repro.checks.contract import CaptureCheck, FieldCheck, MovedBufferCheck
from fuzzgraph.repro.checks.differential import (
    EagerCheck,
    HistoryCheck,
    InterferenceCheck,
    KeptOutputCheck,
    LeftOverCheck,
)
from fuzzgraph.repro.checks.footprint import ForeignRowsCheck, RedZoneCheck
from fuzzgraph.repro.checks.reference import FormCheck, NewRowsCheck, OutputCheck
from fuzzgraph.repro.checks.survival import SurvivalCheck
from fuzzgraph.repro.not_standalone import NotStandalone

__all__ = ["ScriptCheck", "check_for"]

_KINDS: dict[str, type[ScriptCheck]] = {
    "footprint": RedZoneCheck,
    "reference": OutputCheck,
    "eager": EagerCheck,
    "noninterference": InterferenceCheck,
    "history": HistoryCheck,
    "contract": FieldCheck,
    "survival": SurvivalCheck,
}


def check_for(finding: Finding, config: EngineConfig) -> ScriptCheck:
    """The check that shows a finding of this kind.

    Raises:
        NotStandalone: it is about something that operations cannot show.
    """
    return _kind(finding)(finding, config)


def _kind(finding: Finding) -> type[ScriptCheck]:
    if finding.step < 0:
        raise NotStandalone("it happened before the first step")
    if finding.oracle == "handover":
        raise NotStandalone("what is handed over is the engine's Python, and no operation shows it")
    if finding.oracle == "overlap" or finding.detail.get("run") == "ahead":
        raise NotStandalone("torch alone copies at once on a CPU, and on a GPU late by chance only")
    if finding.oracle not in _KINDS:
        raise NotStandalone(f"oracle {finding.oracle!r} is not one of FuzzGraph's own")
    if finding.symptom in _UNSHOWN:
        raise NotStandalone(_UNSHOWN[finding.symptom])
    if finding.oracle == "contract" and finding.stage == "capture":
        return CaptureCheck
    if finding.oracle == "contract" and "another address" in finding.message:
        return MovedBufferCheck
    if finding.oracle == "reference" and "indices" in finding.detail:
        return NewRowsCheck
    if finding.oracle == "history" and "kept_from" in finding.detail:
        return KeptOutputCheck
    if finding.oracle == "history" and "left_over" in finding.detail:
        return LeftOverCheck
    if finding.symptom == "broken_form":
        return FormCheck
    return ForeignRowsCheck if finding.symptom == "foreign_write" else _KINDS[finding.oracle]


_UNSHOWN = {
    "missing": "what is missing is decided by the engine's Python, not by an operation",
    "stray_access": "torch runs a kernel without checking each of its accesses",
    "freed_memory": "a script keeps every tensor that it names",
    "race": "torch runs the programs of a kernel one after the other",
}
