"""Clause "a replay equals the same engine without a graph"."""

from __future__ import annotations

from collections.abc import Iterable
from functools import partial

import torch

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import mismatch
from fuzzgraph.oracles.comparison import Difference, beyond_yardstick, first_difference

__all__ = ["Eager"]


_CUT_BY_PADDING = frozenset({"moe"})
"""Outputs whose rows depend on the padded token count, which an eager run does not have."""


class Eager:
    """Live outputs equal the eager ones: bit for bit under the same plan, else by the yardstick.

    By the yardstick too where the engine differs from itself in the same world. The plan includes
    the frozen maximum length, the split count and the padded size: other values mean another order
    of summation, also inside one library call.
    """

    name = "eager"
    clause: Clause = "computes"
    needs: frozenset[RunKind] = frozenset({"replay", "eager"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        replay, eager = step.runs.get("replay"), step.runs.get("eager")
        if replay is None or eager is None:
            return
        for name, want in eager.outputs.items():
            if name not in replay.outputs:
                continue  # reference reports a missing output
            if name in _CUT_BY_PADDING and replay.padded_tokens != eager.padded_tokens:
                continue
            live = len(step.expected.get(name, want))  # an engine may pad an eager batch too
            got = replay.outputs[name][:live]
            worst = self._compare(step, name, replay, eager, got, want[:live])
            if worst is not None:
                text = f"replayed {name}{worst} by the same engine run eagerly"
                yield mismatch(step, self.name, self.clause, name, worst, text)

    def _compare(
        self,
        step: StepRecord,
        name: str,
        replay: Observation,
        eager: Observation,
        got: torch.Tensor,
        want: torch.Tensor,
    ) -> Difference | None:
        alike = replay.plan == eager.plan and replay.padded_tokens == eager.padded_tokens
        if alike and not step.wavers:
            return first_difference(got, want)
        truth = step.expected.get(name)
        if truth is None or not want.dtype.is_floating_point:
            return first_difference(got, want)
        return beyond_yardstick(
            got, want.double(), partial(step.plain_error, name), 2 * step.value_bound
        )
