"""Makes findings of what the tool reports of an engine's kernels."""

from __future__ import annotations

from fuzzgraph.accesses import KernelError
from fuzzgraph.case import Case
from fuzzgraph.finding import Clause, Finding
from fuzzgraph.worker.sanitizer.check import Checked
from fuzzgraph.worker.sanitizer.placing import Placed

ORACLE = "sanitizer"
"""What findings name as the one that saw them."""


def findings_of(checked: Checked, case: Case, target: str) -> tuple[Finding, ...]:
    """One finding for each name of an error of the engine's kernels."""
    first = {one.error.name: one for one in reversed(checked.found)}
    return tuple(_finding(first[error.name], error, case, target) for error in checked.errors)


def _finding(one: Placed, error: KernelError, case: Case, target: str) -> Finding:
    step = one.step if one.step < len(case.steps) else -1
    when = f"step {step}" if step >= 0 else "before any step"
    return Finding(
        oracle=ORACLE,
        clause=_clause(error),
        target=target,
        step=step,
        mode=case.steps[max(step, 0)].mode,
        buffer=error.name,
        symptom="kernel_error",
        stage=one.stage,
        message=f"{when}: {error.tool} reports {error}",
        detail={"kernel": error.kernel, "source": error.source, "count": error.count},
        kernel_errors=(error,),
    )


def _clause(error: KernelError) -> Clause:
    if error.tool == "racecheck":
        return "computes"  # what a block computes in its shared memory is left to chance
    if error.tool == "synccheck":
        return "survives"  # a barrier that not all threads reach may never open
    return "reads" if error.kind.endswith(("read", "wrote")) else "writes"
