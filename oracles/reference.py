"""Clause "computes what attention defines": live rows against the float64 truth."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from functools import partial

import torch

from fuzzgraph.finding import Clause, Finding, Stage
from fuzzgraph.observation import Observation, RunKind, StepRecord
from fuzzgraph.oracles.claims import claim, mismatch, wrong_writes
from fuzzgraph.reference import RECURRENCES, of_first, output_spec, rounding_of
from fuzzgraph.row_mixing import coarseness
from fuzzgraph.rules.comparison import Difference, beyond_tolerance, wrong_form
from fuzzgraph.rules.writes import wrong_rows_text


class Reference:
    """Outputs have the rows and the dtype that the step promises, their live rows are within the
    yardstick of the truth, and new KV and states are what the model defines.

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
                    message=f"{name}: output missing",
                )
        misshapen = dict(_misshapen(step))
        for (_, name), (stage, message) in misshapen.items():
            yield claim(
                step,
                self.name,
                self.clause,
                buffer=name,
                symptom="broken_form",
                message=message,
                stage=stage,
            )
        yield from self._outputs(step, {name for run, name in misshapen if run == "replay"})
        yield from self._new_kv(step)
        yield from self._references_agree(step)

    def _outputs(self, step: StepRecord, misshapen: set[str]) -> Iterable[Finding]:
        outputs = step.runs["replay"].outputs
        for name in step.expected:
            if name not in outputs or name in misshapen:
                continue
            worst = off_truth(step, name, outputs[name])
            if worst is not None:
                what = "recurrence" if of_first(name) in RECURRENCES else "attention"
                text = f"{name}{worst} against float64 {what}"
                yield mismatch(step, self.name, self.clause, name, worst, text)

    def _new_kv(self, step: StepRecord) -> Iterable[Finding]:
        for write, stage, whose in wrong_writes(step):
            if write.own:
                yield claim(
                    step,
                    self.name,
                    self.clause,
                    buffer=write.region,
                    symptom="mismatch",
                    message=whose + wrong_rows_text(write.region, write.what, write.indices),
                    stage=stage,
                    indices=write.indices,
                    what=write.what,
                )

    def _references_agree(self, step: StepRecord) -> Iterable[Finding]:
        for name, opinion in step.second_opinion.items():
            worst = off_truth(step, name, opinion)
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


def off_truth(step: StepRecord, name: str, got: torch.Tensor) -> Difference | None:
    """Where the live rows of an output with a reference are beyond the yardstick."""
    want = step.expected[name]
    return _beyond(step, name, got[: len(want)], want, results=1)


def too_far_apart(
    step: StepRecord, name: str, got: torch.Tensor, want: torch.Tensor
) -> Difference | None:
    """Where live rows of two results of the engine are farther apart than each may be off."""
    return _beyond(step, name, got, want.double(), results=2)


def _beyond(
    step: StepRecord, name: str, got: torch.Tensor, want: torch.Tensor, *, results: int
) -> Difference | None:
    """The worst place beyond the yardstick, and beyond what weights in FP8 explain.

    Args:
        results: how many of the two are the engine's.
    """
    rounding = rounding_of(name, step.config)
    if results == 2:
        rounding = rounding.of_both()
    bound, plain = results * step.value_bound, partial(step.plain_error, name)
    beyond = partial(beyond_tolerance, got, want, plain, bound, rounding.dtype, rounding.relative)
    worst = beyond(rounding.absolute)
    if worst is None or (errors := step.weight_errors().get(name)) is None:
        return worst
    return beyond(rounding.behind(results * errors[: len(got)]).absolute)


def may_follow_padding(step: StepRecord, name: str, seen: Observation) -> bool:
    """Whether padded rows, whose inputs are free, coarsen the live rows.

    They hold what an earlier batch left, or what the engine pads an eager batch with.
    """
    if name not in step.expected or not coarseness(name, step.config)[0]:
        return False
    return seen.padded_tokens > seen.num_tokens


def _misshapen(step: StepRecord) -> Iterator[tuple[tuple[RunKind, str], tuple[Stage, str]]]:
    """(run, output) -> (stage, what is wrong with its form): surplus rows are nobody's padding."""
    eagerly = step.batch.via == "eager"
    runs: tuple[tuple[RunKind, Stage], ...] = (
        ("replay", "eager" if eagerly else "replay"),
        ("eager", "eager"),
    )
    for run, stage in runs:
        if (seen := step.runs.get(run)) is None:
            continue
        for name, got in seen.outputs.items():
            form = output_spec(name, seen, step.batch, step.config)
            if form is None:
                continue
            if wrong := wrong_form(got, (form.rows, *form.columns), form.dtypes):
                whose = "the eager run's " if run == "eager" else ""
                yield (run, name), (stage, f"{whose}{name} {wrong}")
