"""Clause "it comes back": no exception, device fault, hang or dead process."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

from fuzzgraph.finding import Clause, Finding, Stage, Symptom
from fuzzgraph.observation import RunKind, StepRecord
from fuzzgraph.oracles.claims import claim

__all__ = ["Survival"]


class Survival:
    """Every stage of every run ends with an observation."""

    name = "survival"
    clause: Clause = "survives"
    needs: frozenset[RunKind] = frozenset({"replay"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for failure in step.failures:
            yield claim(
                step,
                self.name,
                self.clause,
                buffer="",
                symptom=cast(Symptom, failure.symptom),
                stage=cast(Stage, failure.stage),
                message=f"{failure.stage} raised {failure.error} at {failure.where}",
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
