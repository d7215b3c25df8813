"""Clause "it comes back": no exception, device fault, hang or dead process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from fuzzgraph.finding import Clause, Finding, Stage, Symptom
from fuzzgraph.observation import RunKind, StepRecord
from fuzzgraph.oracles.claims import claim


class Survival:
    """Every stage of every run ends with an observation."""

    name = "survival"
    clause: Clause = "survives"
    needs: frozenset[RunKind] = frozenset({"replay"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for failure in step.failures:
            small, line = failure.too_small, failure.allocated_at
            allocated = f" (allocated at {line})" if line else ""
            blamed = f"; {small} is too small{allocated}" if small else ""
            known = {"too_small": small, "allocated_at": line}
            yield claim(
                step,
                self.name,
                self.clause,
                buffer="",
                symptom=cast(Symptom, failure.symptom),
                stage=cast(Stage, failure.stage),
                message=f"{failure.stage} raised {failure.error} at {failure.where}{blamed}",
                **{name: value for name, value in known.items() if value},
                run=failure.run,
                error=failure.error,
                where=failure.where,
            )
        if "replay" not in step.runs and not step.failures:
            yield claim(
                step,
                self.name,
                self.clause,
                buffer="",
                symptom="missing",
                stage="replay",
                message="the run left neither an observation nor an error",
            )
