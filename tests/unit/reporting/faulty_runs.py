"""Runs whose findings are real: planted faults on cases that show them.

The cases stand beside this module: those of corpus/faults change whenever a search finds simpler
ones, and the texts that are compared here with them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fuzzgraph.case import (
    BatchRow,
    Case,
    EngineConfig,
    Mode,
    ReplayStep,
    digest,
    load_case,
    validate,
)
from fuzzgraph.execution import Execution
from fuzzgraph.faults import open_fault
from fuzzgraph.finding import Finding
from fuzzgraph.run.events import ReportedFinding, RunSummary, finding_id
from fuzzgraph.run.spec import RunSpec, Setup

CASES = Path(__file__).with_name("cases")
STALE_ROWS = "sglang-stale-req-pool-indices-decode"
VIEWS = "sglang-pr-23037-results-are-views"


def findings_of(fault: str, case: Case) -> tuple[Finding, ...]:
    execution = Execution(open_fault(fault))
    try:
        return execution.run_case(case).findings
    finally:
        execution.close()


def stored(fault: str) -> Case:
    return load_case(CASES / f"{fault}.json")


def reported_of(fault: str, case: Case, oracle: str = "", **changes: Any) -> ReportedFinding:
    """The first finding of a case, or of an oracle, with all others as what else it shows."""
    found = findings_of(fault, case)
    chosen = next(one for one in found if oracle in ("", one.oracle))
    name = finding_id(chosen.key)
    path = f"r/findings/{name}/case.json"
    return ReportedFinding(
        id=name,
        finding=chosen,
        case=case,
        digest=digest(case),
        also=tuple(one for one in found if one is not chosen),
        case_path=path,
        replay=f"fuzzgraph replay {path} --target builtin --fault {fault}",
        **changes,
    )


def after(first: ReplayStep, *then: ReplayStep, **config: Any) -> Case:
    """A few steps on a small engine."""
    settings: dict[str, Any] = {"capture_bs": (1,), "page_size": 1, "max_context_len": 1, **config}
    case = Case(schema_version=1, config=EngineConfig(**settings), steps=(first, *then))
    return validate(case)


def one_row(mode: Mode = "decode") -> ReplayStep:
    row = BatchRow(request=0, seq_len=1, new_tokens=0 if mode == "draft" else 1)
    return ReplayStep(mode=mode, rows=(row,))


def run_of(fault: str, *found: ReportedFinding) -> RunSummary:
    return RunSummary(
        fuzzgraph="0.1.0",
        spec=RunSpec(setup=Setup(target="builtin", fault=fault), seed=1, out="r"),
        seconds=10.0,
        cases=100,
        steps=250,
        corpus_cases=27,
        findings=found,
    )
