"""Clause "computes what attention defines": live rows against the float64 truth."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import RunKind, StepRecord
from fuzzgraph.oracles.claims import claim, mismatch
from fuzzgraph.oracles.comparison import beyond_yardstick

__all__ = ["Reference"]


class Reference:
    """Live outputs are within the yardstick of the truth, and new KV is what the model defines.

    Where the two references disagree with each other, the finding is about FuzzGraph.
    """

    name = "reference"
    clause: Clause = "computes"
    needs: frozenset[RunKind] = frozenset({"replay"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        seen = step.runs.get("replay")
        if seen is None:
            return
        for name in step.promised_outputs:
            if name not in seen.outputs:
                yield claim(
                    step,
                    self.name,
                    self.clause,
                    buffer=name,
                    symptom="missing",
                    message=f"output {name} was promised and is not there",
                )
        yield from self._outputs(step)
        yield from self._new_kv(step)
        yield from self._references_agree(step)

    def _outputs(self, step: StepRecord) -> Iterable[Finding]:
        outputs = step.runs["replay"].outputs
        for name, want in step.expected.items():
            if name not in outputs:
                continue
            got = outputs[name][: len(want)]
            worst = beyond_yardstick(got, want, partial(step.plain_error, name), step.value_bound)
            if worst is not None:
                text = f"{name}{worst} against float64 attention"
                yield mismatch(step, self.name, self.clause, name, worst, text)

    def _new_kv(self, step: StepRecord) -> Iterable[Finding]:
        for write in step.foreign_writes:
            if write.own:
                yield claim(
                    step,
                    self.name,
                    self.clause,
                    buffer=write.region,
                    symptom="mismatch",
                    message=f"{write.region}: {write.what}s {write.indices} of the batch do not"
                    " hold what the model defines for its new tokens",
                    indices=write.indices,
                )

    def _references_agree(self, step: StepRecord) -> Iterable[Finding]:
        for name, opinion in step.second_opinion.items():
            worst = beyond_yardstick(
                opinion, step.expected[name], partial(step.plain_error, name), step.value_bound
            )
            if worst is not None:
                yield claim(
                    step,
                    self.name,
                    self.clause,
                    buffer=f"reference:{name}",
                    symptom="mismatch",
                    stage="check",
                    message=f"FuzzGraph's own two references disagree on {name}{worst}; please"
                    " report this case",
                )
