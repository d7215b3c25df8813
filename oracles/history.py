"""Clause "whatever was replayed before it": a twin without a past gives the same."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import Field, Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.oracles.comparison import Difference, first_difference

__all__ = ["History"]


class History:
    """A step after any history equals the same step straight after capture.

    Compared bit for bit: live outputs, used metadata, and of the padded tail what selects memory.
    Results that the target promises to keep must survive later replays.
    """

    name = "history"
    clause: Clause = "history"
    needs: frozenset[RunKind] = frozenset({"replay", "screen", "twin"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for kept in step.kept_changes:
            yield claim(
                step,
                self.name,
                self.clause,
                buffer=kept.name,
                symptom="mismatch",
                message=f"{kept.name} handed out at step {kept.step} was changed by this replay",
                kept_from=kept.step,
            )
        replay, twin = step.runs.get("replay"), step.runs.get("twin")
        if replay is None or twin is None or step.wavers:
            return
        fields = {field.name: field for field in step.fields}
        for name, got in replay.metadata.items():
            part = _comparable(got, fields.get(name), replay)
            want = twin.metadata.get(name)
            if want is None:
                yield self._finding(step, name, f"{name} exists only with a past", None)
            elif worst := first_difference(part, _comparable(want, fields.get(name), twin)):
                yield self._finding(step, name, f"{name}{worst} without the past", worst)
        for name, got in replay.outputs.items():
            rows = len(step.expected[name]) if name in step.expected else 0
            want = twin.outputs.get(name)
            if want is None:
                yield self._finding(step, name, f"{name} exists only with a past", None)
            elif worst := first_difference(got[:rows], want[:rows]):
                yield self._finding(step, name, f"{name}{worst} without the past", worst)

    def _finding(self, step: StepRecord, name: str, text: str, worst: Difference | None) -> Finding:
        return claim(
            step,
            self.name,
            self.clause,
            buffer=name,
            symptom="mismatch",
            message=text,
            index=list(worst.index) if worst else [],
        )


def _comparable(values: torch.Tensor, field: Field | None, seen: Observation) -> torch.Tensor:
    """The part that must not depend on the past: all of it, or the live rows of a free field."""
    if field is None or field.padding.kind != "free":
        return values
    return values[: seen.num_tokens if field.axis == "tokens" else seen.raw_bs]
