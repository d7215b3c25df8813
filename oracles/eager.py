"""Clause "a replay equals the same engine without a graph"."""

from __future__ import annotations

from collections.abc import Iterable

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import mismatch
from fuzzgraph.oracles.reference import may_follow_padding, off_truth, too_far_apart
from fuzzgraph.rules.comparison import Difference, first_difference


class Eager:
    """Live outputs equal the eager ones: bit for bit under the same plan, else by the yardstick.

    By the yardstick too where the engine differs from itself in the same world, and where a layer
    behind attention lets live rows follow the padded ones. The plan includes the frozen maximum
    length, the split count and the padded size: other values mean another order of summation, also
    inside one library call.

    Where the truth agrees with the replay and not with the eager run, the eager run is at fault,
    and the finding says so.
    """

    name = "eager"
    clause: Clause = "computes"
    needs: frozenset[RunKind] = frozenset({"replay", "eager"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        replay, eager = step.runs.get("replay"), step.runs.get("eager")
        if replay is None or eager is None:
            return
        for name in eager.outputs:
            if name not in replay.outputs:
                continue  # reference reports a missing output
            if worst := self._compare(step, name, replay, eager):
                yield self._finding(step, name, worst)

    def _finding(self, step: StepRecord, name: str, worst: Difference) -> Finding:
        if not _eager_is_wrong(step, name):
            text = f"replayed {name}{worst} by the same engine run eagerly"
            return mismatch(step, self.name, self.clause, name, worst, text)
        accused = worst.swapped
        text = f"the eager run's {name}{accused} by the replay, which float64 attention confirms"
        return mismatch(step, self.name, self.clause, name, accused, text, stage="eager")

    def _compare(
        self, step: StepRecord, name: str, replay: Observation, eager: Observation
    ) -> Difference | None:
        live = eager_rows(step, name, eager)
        got, want = (seen.outputs[name][:live] for seen in (replay, eager))
        if compared_exactly(step, name, replay, eager):
            return first_difference(got, want)
        return too_far_apart(step, name, got, want)


def eager_rows(step: StepRecord, name: str, eager: Observation) -> int:
    """Live rows of an output: an engine may pad its eager batches too."""
    return len(step.expected.get(name, eager.outputs[name]))


def compared_exactly(step: StepRecord, name: str, replay: Observation, eager: Observation) -> bool:
    """Whether replay and eager run must agree bit for bit, and not within the tolerance only."""
    if name not in step.expected or not eager.outputs[name].dtype.is_floating_point:
        return True
    if step.nondeterministic or may_follow_padding(step, name, replay):
        return False
    return replay.plan == eager.plan and replay.padded_tokens == eager.padded_tokens


def _eager_is_wrong(step: StepRecord, name: str) -> bool:
    """Whether the truth is within the yardstick of the replay and not of the eager run."""
    if name not in step.expected:
        return False
    replay, eager = step.runs["replay"].outputs[name], step.runs["eager"].outputs[name]
    return off_truth(step, name, replay) is None and off_truth(step, name, eager) is not None
