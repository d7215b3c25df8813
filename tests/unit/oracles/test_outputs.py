"""Outputs have the rows and the dtype that their step promises; what is more is no padding."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from fuzzgraph.case import BatchRow, Case, EngineConfig, Mode, ReplayStep, Via
from fuzzgraph.layout import plan
from fuzzgraph.observation import ForeignWrite, Observation, StepRecord
from fuzzgraph.oracles.footprint import Footprint
from fuzzgraph.oracles.reference import Reference


def _step(
    *lengths: int, mode: Mode = "decode", via: Via = "graph", new_tokens: int = 1, **config: object
) -> StepRecord:
    rows = tuple(
        BatchRow(request=i, seq_len=length, new_tokens=new_tokens)
        for i, length in enumerate(lengths)
    )
    case = Case(
        schema_version=1,
        config=EngineConfig(**config),  # type: ignore[arg-type]
        steps=(ReplayStep(mode=mode, rows=rows, via=via),),
    )
    return StepRecord(0, "engine", case.config, plan(case)[0], ())


def _messages(
    step: StepRecord, padded: int, run: str = "replay", **outputs: torch.Tensor
) -> list[str]:
    live = step.batch.raw_bs
    whole = {name: torch.zeros(padded, 1, 4) for name in outputs}
    step.runs["replay"] = Observation(live, padded, live, padded, outputs=whole)
    seen = Observation(live, padded, live, padded, outputs=outputs)
    step.runs[run] = seen  # type: ignore[index]
    return [finding.message for finding in Reference().judge(step)]


def test_as_many_rows_as_the_padded_batch_has_are_right() -> None:
    assert _messages(_step(3), 2, attention=torch.zeros(2, 1, 4)) == []


@pytest.mark.parametrize("rows", [1, 3])
def test_another_number_of_rows_is_found(rows: int) -> None:
    (said,) = _messages(_step(3), 2, attention=torch.zeros(rows, 1, 4))
    assert f"attention has shape [{rows}, 1, 4], the step promises [2, 1, 4]" in said


def test_an_idle_eager_step_has_no_rows() -> None:
    idle = _step(mode="idle", via="eager")
    assert _messages(idle, 0, attention=torch.zeros(0, 1, 4)) == []
    (said,) = _messages(idle, 0, attention=torch.zeros(1, 1, 4))
    assert "[1, 1, 4], the step promises [0, 1, 4]" in said


def test_a_drafting_engine_drafts_no_tokens_when_idle() -> None:
    idle = _step(mode="idle", via="eager", modes=("draft",), spec_steps=2)
    assert _messages(idle, 0, draft_tokens=torch.zeros(0, dtype=torch.int64)) == []
    (said,) = _messages(idle, 0, draft_tokens=torch.zeros(1, dtype=torch.int64))
    assert "draft_tokens has shape [1]" in said


@pytest.mark.parametrize(("rank", "rows"), [(0, 2), (1, 1)])
def test_a_rank_shows_its_share_of_the_rows(rank: int, rows: int) -> None:
    def step() -> StepRecord:
        return _step(3, 3, 3, attn_tp_size=2, attn_tp_rank=rank)

    assert _messages(step(), 3, moe=torch.zeros(rows, 1, 4)) == []
    (said,) = _messages(step(), 3, moe=torch.zeros(3, 1, 4))
    assert f"moe has shape [3, 1, 4], the step promises [{rows}, 1, 4]" in said


def test_an_engine_may_cut_off_what_it_has_padded_and_say_so() -> None:
    step = _step(3)
    step.runs["replay"] = Observation(
        1, 2, 1, 2, outputs={"attention": torch.zeros(1, 1, 4)}, shown_tokens=1
    )
    assert [*Reference().judge(step)] == []


def test_surplus_rows_of_the_eager_run_are_found_there() -> None:
    step = _step(3)
    assert _messages(step, 2, "eager", attention=torch.zeros(2, 1, 4)) == []
    (said,) = _messages(step, 2, "eager", attention=torch.zeros(3, 1, 4))
    assert "the eager run's attention has shape [3, 1, 4]" in said
    (finding,) = Reference().judge(step)
    assert finding.stage == "eager"


@pytest.mark.parametrize("dtype", ["float32", "bfloat16", "float16"])
def test_an_output_has_the_dtype_of_the_model(dtype: str) -> None:
    other = torch.bfloat16 if dtype == "float32" else torch.float32
    right = torch.zeros(1, 1, 4, dtype=getattr(torch, dtype))
    assert _messages(_step(3, dtype=dtype), 1, attention=right) == []
    (said,) = _messages(_step(3, dtype=dtype), 1, attention=right.to(other))
    assert f"has dtype {str(other)[6:]}, the model computes it in {dtype}" in said


def test_a_state_is_float32_whatever_the_model_computes_in() -> None:
    step = _step(3, dtype="bfloat16", recurrent_state=True)
    assert _messages(step, 1, state=torch.zeros(1, 8)) == []
    (said,) = _messages(step, 1, state=torch.zeros(1, 8, dtype=torch.bfloat16))
    assert "state has dtype bfloat16" in said


@pytest.mark.parametrize("dtype", [torch.int64, torch.int32])
def test_token_ids_may_be_of_either_width(dtype: torch.dtype) -> None:
    step = _step(3, mode="draft", new_tokens=0, modes=("draft",))
    assert _messages(step, 1, draft_tokens=torch.zeros(1, dtype=dtype)) == []
    assert _messages(step, 1, draft_tokens=torch.zeros(1))


def test_an_output_without_a_reference_has_no_form() -> None:
    assert _messages(_step(3), 1, hidden=torch.zeros(5)) == []


def test_a_coarse_output_is_not_measured_by_its_own_dtype() -> None:
    step = replace(_step(3), expected={"attention": torch.ones(1, 1, 4, dtype=torch.float64)})
    step.value_bound = 1.0
    step.yardstick = lambda: {}
    wrong = torch.full((1, 1, 4), 1.0078125)
    step.runs["replay"] = Observation(1, 1, 1, 1, outputs={"attention": wrong})
    (finding,) = Reference().judge(step)
    assert "got 1.00781, expected 1" in finding.message


@pytest.mark.parametrize(("own", "oracle"), [(True, Reference()), (False, Footprint())])
def test_states_that_the_eager_run_leaves_wrong_are_its_finding(
    own: bool, oracle: Reference | Footprint
) -> None:
    step = _step(3)
    step.runs["replay"] = Observation(1, 1, 1, 1)
    step.eager_state_writes = [ForeignWrite("temporal", "state", [7], own=own)]
    (found,) = oracle.judge(step)
    assert (found.buffer, found.stage, found.detail["indices"]) == ("temporal", "eager", [7])
    assert "the eager run's temporal" in found.message
