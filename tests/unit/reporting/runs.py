"""Findings and runs for tests of the reports: one overrun, told with everything around it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.finding import Finding
from fuzzgraph.run.coverage import CoverageMap
from fuzzgraph.run.events import (
    CampaignStarted,
    Event,
    ReportedFinding,
    RunSummary,
    encode_event,
    finding_id,
)
from fuzzgraph.run.spec import RunSpec


def overrun(buffer: str = "kv_indices", step: int = 1) -> Finding:
    return Finding(
        oracle="footprint",
        clause="writes",
        target="builtin",
        step=step,
        mode="decode",
        buffer=buffer,
        symptom="red_zone_hit",
        stage="replay",
        message=f"step {step} (raw_bs=1, padded_bs=2): 2 elements written after {buffer}",
        detail={"offset": 0, "elements": 2, "reach": 1, "payload": 8, "side": "after",
                "allocated_at": "kv.py:57 in __init__", "found": "20 21"},
        confirmed="3/3",
    )  # fmt: skip


def history(steps: int = 2) -> Case:
    rows = tuple(BatchRow(request=name, seq_len=2) for name in range(2))
    full = (ReplayStep(rows=rows),) * (steps - 1)
    config = EngineConfig(capture_bs=(2,), page_size=2)
    return Case(schema_version=1, config=config, steps=(*full, ReplayStep(rows=rows[:1])))


def reported(finding: Finding | None = None, **changes: Any) -> ReportedFinding:
    finding = finding or overrun()
    record = ReportedFinding(
        id=finding_id(finding.key),
        finding=finding,
        case=history(),
        digest="0123456789ab",
        case_path="r/case.json",
        replay="fuzzgraph replay r/case.json --target builtin",
    )
    return msgspec.structs.replace(record, **changes)


def summary(*findings: ReportedFinding, **changes: Any) -> RunSummary:
    covered = CoverageMap()
    covered.add(["mode decode", "page_size=2", "raw<padded"])
    covered.add(["mode idle", "page_size=1"])
    record = RunSummary(
        fuzzgraph="0.1.0",
        spec=_asked(changes),
        started="2026-01-02T01:00:00+00:00",
        seconds=60.0,
        cases=600,
        findings=findings,
        coverage=covered.record(),
        skips={"kernels='triton' is not here": 3},
        skipped=3,
        beyond=("modes: draft",),
    )
    return msgspec.structs.replace(record, **changes)


def _asked(changes: dict[str, Any]) -> RunSpec:
    """What the run was asked, with those changes that concern it, which are taken out."""
    asked = {name: changes.pop(name) for name in RunSpec.__struct_fields__ if name in changes}
    return msgspec.structs.replace(RunSpec(seed=7, out=""), **asked)


def write_log(folder: Path, *events: Event, name: str = "events.jsonl") -> None:
    folder.mkdir(exist_ok=True)
    (folder / name).write_bytes(b"".join(map(encode_event, events)))


STARTED = CampaignStarted(spec=RunSpec(seed=7), fuzzgraph="0.1.0", beyond=("modes: draft",))
