"""The finding that a child's death becomes: how it ended, in which stage, and on which case."""

from __future__ import annotations

from pathlib import Path

from fuzzgraph.case import Case, digest, encode_case
from fuzzgraph.finding import Finding
from fuzzgraph.worker.messages import Entered
from fuzzgraph.worker.process import Ending

GARBAGE = "invalid_response"
_KEPT = 20
"""Cases of deaths that are kept on disk, the newest ones."""


def crash_finding(
    folder: Path, entered: Entered, target: str, case: Case, ending: Ending
) -> Finding:
    """What ended and where are apart: two ways to die in one kind of step are two findings."""
    kept = folder / f"died-{digest(case)}.json"
    kept.write_bytes(encode_case(case))
    _forget_old(folder)
    stage, step = entered.stage, entered.step
    detail: dict[str, str | int | float | list[int]] = {
        "child": ending.how,
        "case": str(kept),
        "log": str(folder / "worker.log"),
    }
    if ending.device_error:
        detail["device_error"] = ending.device_error
    where = f"of step {step}" if step >= 0 else "before the first step"
    return Finding(
        oracle="survival",
        clause="survives",
        target=target,
        step=step,
        mode=case.steps[step if 0 <= step < len(case.steps) else 0].mode,
        buffer=_name(ending, stage),
        symptom=ending.symptom,
        stage=stage,
        message=f"the engine's process {ending.how} at stage {stage!r} {where}",
        detail=detail,
    )


def _name(ending: Ending, stage: str) -> str:
    """How it ended and where; garbage is noticed after its stage, which then says nothing."""
    return f"process: {ending.kind}" + ("" if ending.kind == GARBAGE else f" in {stage}")


def invalid_response(what: str) -> Ending:
    """The end of a child that sends something else than an answer."""
    return Ending("missing", f"sent an invalid reply ({what}) and was killed", GARBAGE)


def _forget_old(folder: Path) -> None:
    """A night of crashes must not fill the disk: the campaign keeps what is a finding."""
    kept = sorted(folder.glob("died-*.json"), key=lambda path: path.stat().st_mtime)
    for path in kept[:-_KEPT]:
        path.unlink(missing_ok=True)
