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
        for stumble in step.stumbles:
            yield claim(
                step,
                self.name,
                self.clause,
                buffer="",
                symptom=cast(Symptom, stumble.symptom),
                stage=cast(Stage, stumble.stage),
                message=f"{stumble.stage} raised {stumble.error} at {stumble.where}",
                run=stumble.run,
                error=stumble.error,
                where=stumble.where,
            )
        if "replay" not in step.runs and not step.stumbles:
            yield claim(
                step,
                self.name,
                self.clause,
                buffer="",
                symptom="missing",
                stage="replay",
                message="the run left neither an observation nor an error",
            )
