"""Replayed outputs against eager ones: live rows count, what an engine pads does not."""

from __future__ import annotations

import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.layout import plan
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.oracles.eager import Eager
from fuzzgraph.row_mixing import mix_rows
from fuzzgraph.text.finding_text import sentence


def _step(replayed: list[float], eager: list[float]) -> StepRecord:
    """One live row, and what both runs hand out for two."""
    case = Case(
        schema_version=1,
        config=EngineConfig(),
        steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=1),)),),
    )
    step = StepRecord(0, "engine", case.config, plan(case)[0], ())
    step.expected = {"attention": torch.tensor([[1.0]], dtype=torch.float64)}
    for run, values in (("replay", replayed), ("eager", eager)):
        seen = Observation(1, 2, 1, 2)
        seen.outputs = {"attention": torch.tensor(values)[:, None]}
        step.runs[run] = seen  # type: ignore[index]
    return step


def test_a_live_row_that_differs_is_a_finding() -> None:
    (finding,) = Eager().judge(_step([1.5, 0.0], [1.0, 0.0]))
    assert "attention[0, 0]: got 1.5, expected 1" in finding.message


def test_a_row_that_the_eager_engine_padded_for_itself_is_not_compared() -> None:
    assert not list(Eager().judge(_step([1.0, 1008.0], [1.0, 0.0])))


def _mixed(largest_padded: float, live: float) -> StepRecord:
    """One live row behind one scale over two rows, of which the eager engine pads one as well."""
    config = EngineConfig(row_mixing="fp8_scale")
    rows = torch.tensor([[0.4], [largest_padded]])
    eagerly = torch.tensor([[live], [0.0]])
    step = _step([], [])
    step.config = config
    step.expected = {"mixed": torch.tensor([[0.4]], dtype=torch.float64)}
    step.value_bound = 1.0
    step.yardstick = lambda: {}
    for run, shown in (("replay", rows), ("eager", eagerly)):
        step.runs[run].outputs = {"mixed": mix_rows(shown, config)}  # type: ignore[index]
    return step


def test_rows_that_both_runs_pad_may_hold_other_values_under_one_scale() -> None:
    step = _mixed(3.9, 0.4)
    replayed, eagerly = (step.runs[run].outputs["mixed"][0] for run in ("replay", "eager"))
    assert not torch.equal(replayed, eagerly)
    assert not list(Eager().judge(step))


def test_a_live_row_behind_one_scale_that_differs_by_more_is_a_finding() -> None:
    assert len(list(Eager().judge(_mixed(3.9, 0.5)))) == 1


def _differing(replayed: float, eager: float) -> StepRecord:
    step = _step([replayed, 0.0], [eager, 0.0])
    step.value_bound = 1.0
    step.yardstick = lambda: {}
    return step


def test_where_the_truth_agrees_with_the_replay_the_eager_run_is_at_fault() -> None:
    (finding,) = Eager().judge(_differing(1.0, 1.5))
    assert finding.stage == "eager"
    assert "the eager run's attention[0, 0]: got 1.5, expected 1" in finding.message
    assert sentence(finding) == (
        "An eager decode step computes attention[0, 0] = 1.5; the replay, which float64 attention"
        " confirms, gives 1"
    )


def test_where_the_truth_agrees_with_the_eager_run_the_replay_is_at_fault() -> None:
    (finding,) = Eager().judge(_differing(1.5, 1.0))
    assert finding.stage == "replay"
    assert "replayed attention[0, 0]: got 1.5, expected 1" in finding.message


def test_where_the_truth_agrees_with_neither_the_replay_is_named() -> None:
    (finding,) = Eager().judge(_differing(1.5, 1.25))
    assert finding.stage == "replay"


def test_an_output_without_a_truth_is_compared_as_far_as_the_eager_run_goes() -> None:
    step = _step([2.0, 1008.0], [2.0])
    step.expected = {}
    assert not list(Eager().judge(step))
    step.runs["replay"].outputs["attention"][0] = 3.0
    assert len(list(Eager().judge(step))) == 1
