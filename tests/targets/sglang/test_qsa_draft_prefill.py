"""Prompts of a draft model of Qwen4-Exp in prefill graphs of its own."""

from __future__ import annotations

import pytest

from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_qsa_prefill import NEWEST, prompts

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

TARGET = "sglang-qsa-draft-prefill"
MUTANTS = "tests.targets.sglang.qsa_draft_prefill_mutants"


@pytest.mark.parametrize("index_topk", [0, 3])
@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_prompts_of_a_draft_model_are_right(
    workers: Workers, version: str, index_topk: int
) -> None:
    assert workers.findings(version, prompts(index_topk=index_topk), TARGET) == ()


@pytest.mark.parametrize(
    ("planted", "output"),
    [
        ("hidden_states_of_the_prompt_before", "attention"),
        ("stream_of_the_prompt_before", "attention"),
        ("stream_of_the_first_tokens_handed_on", "last_attention"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, output: str) -> None:
    found = workers.findings(NEWEST, prompts(), f"{MUTANTS}:{planted}")
    assert output in {each.buffer for each in found}


@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_a_draft_model_of_text_alone_ignores_hidden_states(workers: Workers, version: str) -> None:
    found = workers.findings(version, prompts(), f"{MUTANTS}:text_alone")
    assert ("reference", "attention") in {(each.oracle, each.buffer) for each in found}


@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_generated_prompts_of_a_draft_model_are_silent(workers: Workers, version: str) -> None:
    drawn = generated(TARGET, lambda config: config.index_topk > 0, blocks=6, each=12, enough=10)
    assert len(drawn) >= 10
    for case in drawn:
        assert workers.findings(version, case, TARGET) == ()
