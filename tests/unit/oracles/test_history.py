"""A step with a past against the same without one: what either has alone is a finding."""

from __future__ import annotations

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep
from fuzzgraph.layout import plan
from fuzzgraph.observation import Field, Observation, PaddingRule, StepRecord
from fuzzgraph.oracles.history import History
from fuzzgraph.text.finding_text import sentence


def _messages(replay: dict[str, torch.Tensor], twin: dict[str, torch.Tensor]) -> list[str]:
    return [finding.message for finding in History().judge(_record(replay, twin))]


def _record(replay: dict[str, torch.Tensor], twin: dict[str, torch.Tensor]) -> StepRecord:
    case = Case(
        schema_version=1,
        config=EngineConfig(),
        steps=(ReplayStep(rows=(BatchRow(request=0, seq_len=1),)),),
    )
    step = StepRecord(0, "engine", case.config, plan(case)[0], ())
    step.runs["replay"] = Observation(1, 1, 1, 1, metadata=replay)
    step.runs["twin"] = Observation(1, 1, 1, 1, metadata=twin)
    return step


def test_equal_metadata_is_silent() -> None:
    assert _messages({"seq_lens": torch.ones(1)}, {"seq_lens": torch.ones(1)}) == []


@pytest.mark.parametrize("which", ["with", "without"])
def test_metadata_that_depends_on_a_past_is_found(which: str) -> None:
    there, gone = {"seq_lens": torch.ones(1)}, dict[str, torch.Tensor]()
    (said,) = _messages(there, gone) if which == "with" else _messages(gone, there)
    assert f"seq_lens exists only {which} a past" in said


def test_what_was_to_be_rewritten_and_was_not_is_history() -> None:
    step = _record({"seq_lens": torch.ones(1)}, {"seq_lens": torch.ones(1)})
    assert [*History().judge(step)] == []
    step.blamed = {("left_over", "seq_lens"): "plan_tokens as the previous replay left it"}
    (finding,) = History().judge(step)
    assert finding.clause == "history"


def test_before_the_first_step_there_was_no_replay() -> None:
    step = _record({"seq_lens": torch.ones(1)}, {"seq_lens": torch.ones(1)})
    step.blamed = {("left_over", "seq_lens"): "plan_tokens as the previous replay left it"}
    for index, past in ((0, "warm-up and capture"), (1, "the previous replay")):
        step.index = index
        (finding,) = History().judge(step)
        assert f"seq_lens depends on plan_tokens as {past} left it" in finding.message
        assert sentence(finding).endswith(f"depends on what {past} left in plan_tokens")


def test_one_that_differs_without_a_past_too_is_told_once() -> None:
    step = _record({"seq_lens": torch.ones(1)}, {"seq_lens": torch.zeros(1)})
    step.blamed = {("left_over", "seq_lens"): "plan_tokens as the previous replay left it"}
    assert len([*History().judge(step)]) == 1


def test_a_field_that_depends_on_the_past_by_right_is_passed_over() -> None:
    step = _record({"is_prefilling": torch.ones(1)}, {"is_prefilling": torch.zeros(1)})
    assert len([*History().judge(step)]) == 1
    step.fields = (
        Field("is_prefilling", "requests", "nothing", PaddingRule("fill"), unjudged="by this test",
              past="a request without a past is new"),
    )  # fmt: skip
    assert [*History().judge(step)] == []
