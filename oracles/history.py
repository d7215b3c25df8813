"""Clause "whatever was replayed before it": a twin without a past gives the same."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from fuzzgraph.finding import Clause, Finding
from fuzzgraph.observation import Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim
from fuzzgraph.oracles.reference import may_follow_padding, too_far_apart
from fuzzgraph.rules.comparison import Difference, first_difference
from fuzzgraph.rules.writes import kept_text
from fuzzgraph.text.finding_text import LEFT_BY_CAPTURE, LEFT_OVER


class History:
    """A step after any history equals the same step straight after capture.

    Compared bit for bit: live outputs, used metadata, and of the padded tail what selects memory.
    Only where a layer behind attention works out one scale over all rows, live rows may follow the
    padded ones, and these the past: there within what the scale itself explains.
    Results that the target promises to keep must survive later replays. What the target promises to
    rewrite before each replay must not be used as the one before left it.
    """

    name = "history"
    clause: Clause = "history"
    needs: frozenset[RunKind] = frozenset({"replay", "screen", "twin", "left_over"})

    def judge(self, step: StepRecord) -> Iterable[Finding]:
        for kept in step.kept_changes:
            yield claim(
                step,
                self.name,
                self.clause,
                buffer=kept.name,
                symptom="mismatch",
                message=kept_text(kept.name, kept.step),
                kept_from=kept.step,
                rows="live",
            )
        if step.nondeterministic or "replay" not in step.runs:
            return
        found = [*self._against_twin(step)]
        yield from found
        yield from self._left_over(step, {finding.buffer for finding in found})

    def _left_over(self, step: StepRecord, told: set[str]) -> Iterable[Finding]:
        """What depends on a buffer that was to be rewritten for this batch, and was not."""
        for (run, name), place in step.blamed.items():
            if run == "left_over" and name not in told:
                past = place if step.index > 0 else place.replace(LEFT_OVER, LEFT_BY_CAPTURE)
                text = f"{name} depends on {past}: it was not rewritten for this batch"
                yield self._finding(step, name, text, None, left_over=place)

    def _against_twin(self, step: StepRecord) -> Iterable[Finding]:
        replay, twin = step.runs["replay"], step.runs.get("twin")
        if twin is None:
            return
        for kind in ("metadata", "outputs"):
            with_past, without = getattr(replay, kind), getattr(twin, kind)
            for name in {**with_past, **without}:
                if name not in with_past or name not in without:
                    which = "with" if name in with_past else "without"
                    yield self._finding(step, name, f"{name} exists only {which} a past", None)
                    continue
                worst = judged_difference(step, name, with_past[name], without[name], replay)
                if worst is not None:
                    text = f"{name}{worst} without the past"
                    live = {"rows": "live"} if kind == "outputs" else {}
                    yield self._finding(step, name, text, worst, **live)

    def _finding(
        self, step: StepRecord, name: str, text: str, worst: Difference | None, **detail: Any
    ) -> Finding:
        return claim(
            step,
            self.name,
            self.clause,
            buffer=name,
            symptom="mismatch",
            message=text,
            index=list(worst.index) if worst else [],
            **detail,
        )


def judged_difference(
    step: StepRecord, name: str, got: torch.Tensor, want: torch.Tensor, seen: Observation
) -> Difference | None:
    """The worst difference of an output or field in the rows that must be alike; None for none.

    Bit for bit, but where live rows may follow what pads them.
    """
    rows = history_rows(step, name, seen)
    if may_follow_padding(step, name, seen):
        return too_far_apart(step, name, got[:rows], want[:rows])
    return first_difference(got[:rows], want[:rows])


def history_rows(step: StepRecord, name: str, seen: Observation) -> int | None:
    """First rows of an output or field that must not depend on the past; None for all.

    Live rows of outputs and of fields whose padding is free; none of a field that depends on the
    past by right; all rows of other fields.
    """
    if name in seen.outputs:
        return len(step.expected.get(name, ()))
    field = next((each for each in step.fields if each.name == name), None)
    if field is not None and field.past:
        return 0
    if field is None or field.padding_in(step.batch.mode).kind != "free":
        return None
    return seen.num_tokens if field.axis == "tokens" else seen.raw_bs
