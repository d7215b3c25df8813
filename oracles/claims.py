"""Builds findings: fills in what every oracle would otherwise repeat."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

from fuzzgraph.accesses import Access, Where
from fuzzgraph.finding import Clause, Finding, Stage, Symptom
from fuzzgraph.observation import ForeignWrite, FreedUse, StepRecord
from fuzzgraph.rules.comparison import Difference
from fuzzgraph.text.numbers import counted


def claim(
    step: StepRecord,
    oracle: str,
    clause: Clause,
    *,
    buffer: str,
    symptom: Symptom,
    message: str,
    stage: Stage | None = None,
    **detail: Any,
) -> Finding:
    """A finding of `oracle` at `step`; `message` should carry the values."""
    size = ""
    if (seen := step.runs.get("replay")) is not None:
        size = f" (raw_bs={seen.raw_bs}, padded_bs={seen.padded_bs})"
    # a session that failed is not asked for its buffers
    found = step.allocation(buffer) if buffer and not step.failures else None
    if found is not None and "allocated_at" not in detail:
        detail |= {"engine_buffer": found.buffer, "allocated_at": found.allocated_at}
    return Finding(
        oracle=oracle,
        clause=clause,
        target=step.target,
        step=step.index,
        mode=step.batch.mode,
        buffer=buffer,
        symptom=symptom,
        stage=stage or ("eager" if step.batch.via == "eager" else "replay"),
        message=f"{'before any step' if step.index < 0 else f'step {step.index}'}{size}: {message}",
        detail={name: _readable(value) for name, value in detail.items()},
    )


def mismatch(
    step: StepRecord,
    oracle: str,
    clause: Clause,
    name: str,
    worst: Difference,
    message: str,
    stage: Stage | None = None,
) -> Finding:
    """A finding that output `name` is off, most of all at `worst`."""
    return claim(
        step,
        oracle,
        clause,
        buffer=name,
        symptom="mismatch",
        message=message,
        stage=stage,
        index=list(worst.index),
        got=worst.got,
        want=worst.want,
        count=worst.count,
    )


def wrong_writes(step: StepRecord) -> Iterator[tuple[ForeignWrite, Stage | None, str]]:
    """(write to another's place or wrong write, its stage where that is not the step's, whose)."""
    for write in step.foreign_writes:
        yield write, None, ""
    for write in step.eager_state_writes:
        yield write, "eager", "the eager run's "


def stray(step: StepRecord, oracle: str, clause: Clause, access: Access) -> Finding:
    """A finding that a kernel loaded or stored outside of what its pointer belongs to."""
    buffer = access.region or access.buffer
    verb = "loads from" if access.kind == "read" else "stores to"
    passed = "" if access.buffer in (buffer, "?") else f", passed as {access.buffer}"
    return claim(
        step,
        oracle,
        clause,
        buffer=buffer,
        symptom="stray_access",
        stage="capture" if step.index < 0 else None,
        message=f"{access.kernel} at {access.source} {verb} {_WHERE[access.where]} {buffer}{passed}"
        f" ({counted(access.extent, 'element')}): program {access.program} at element"
        f" {access.offset:+d}; {counted(access.elements, 'such access')}, from {access.low:+d} to"
        f" {access.high:+d}",
        kernel=access.kernel,
        source=access.source,
        offset=access.offset,
        elements=access.elements,
        payload=access.extent,
    )


def freed(step: StepRecord, oracle: str, clause: Clause, use: FreedUse) -> Finding:
    """A finding that a replayed graph uses a buffer that nothing holds any more."""
    verb = "reads" if use.kind == "read" else "writes"
    return claim(
        step,
        oracle,
        clause,
        buffer=use.region,
        symptom="freed_memory",
        message=f"graph {use.graph} {verb} {use.region} ({use.dtype} {list(use.shape)}, allocated"
        f" at {use.allocated_at}) in {use.by}, captured at {use.source}; nothing holds that buffer"
        " any more, and what is allocated next may lie there",
        graph=use.graph,
        kernel=use.by,
        source=use.source,
        allocated_at=use.allocated_at,
    )


_WHERE: dict[Where, str] = {
    "outside": "outside",
    "between": "gaps between the rows of",
    "unmapped": "unmapped memory outside",
    "unwritten": "elements that nobody wrote of",
}


def _readable(value: Any) -> Any:
    """JSON has no NaN and no infinity: such a value is kept as its name."""
    return str(value) if isinstance(value, float) and not math.isfinite(value) else value
