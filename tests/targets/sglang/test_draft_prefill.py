"""Prompts of draft models in prefill graphs of their own, on Triton attention."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_prefill import prefill_case

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

TARGET = "sglang-draft-prefill"
MUTANTS = "tests.targets.sglang.draft_prefill_mutants"
NEWEST = "0.5.23"
FIRST = "0.5.16"


def prompts(**settings: Any) -> Case:
    """Two steps of prompts that are padded, and one of the graph's size."""
    return prefill_case(
        "breakable", ((0, 0, 7),), ((0, 7, 3), (1, 0, 2)), ((2, 0, 8),),
        **{"capture_tokens": (8,), "num_q_heads": 2, "num_kv_heads": 1, "head_dim": 8,
           "v_head_dim": 8, **settings},
    )  # fmt: skip


@pytest.mark.parametrize("version", [FIRST, "0.5.17", "0.5.19", "0.5.21", "0.5.22", NEWEST])
def test_prompts_of_a_model_that_joins_inside_are_right(workers: Workers, version: str) -> None:
    assert workers.findings(version, prompts(), TARGET) == ()


@pytest.mark.parametrize("version", ["0.5.19", "0.5.21", NEWEST])
def test_graphs_of_a_model_that_joins_outside_ignore_hidden_states(
    workers: Workers, version: str
) -> None:
    found = workers.findings(version, prompts(outer_join=True), TARGET)
    assert ("eager", "attention") in {(each.oracle, each.buffer) for each in found}
    assert ("reference", "last_attention") in {(each.oracle, each.buffer) for each in found}


@pytest.mark.parametrize("version", [FIRST, "0.5.17"])
def test_such_a_model_could_not_join_padded_prompts(workers: Workers, version: str) -> None:
    found = workers.findings(version, prompts(outer_join=True), TARGET)
    assert "Sizes of tensors must match" in found[0].message


def test_with_a_slot_for_embeddings_such_a_model_is_right(workers: Workers) -> None:
    found = workers.findings(NEWEST, prompts(outer_join=True), f"{MUTANTS}:with_a_slot")
    assert found == ()


@pytest.mark.parametrize(
    ("planted", "output"),
    [
        ("hidden_states_of_the_prompt_before", "attention"),
        ("hidden_states_of_the_token_before", "attention"),
        ("first_rows_handed_on", "last_attention"),
    ],
)
@pytest.mark.parametrize("version", [FIRST, NEWEST])
def test_a_planted_bug_is_found(workers: Workers, version: str, planted: str, output: str) -> None:
    found = workers.findings(version, prompts(), f"{MUTANTS}:{planted}")
    assert output in {each.buffer for each in found}


@pytest.mark.parametrize("version", [FIRST, "0.5.19", NEWEST])
def test_generated_prompts_of_a_model_that_joins_inside_are_silent(
    workers: Workers, version: str
) -> None:
    drawn = generated(TARGET, lambda config: not config.outer_join, blocks=4, each=12, enough=10)
    assert len(drawn) >= 10
    for case in drawn:
        assert workers.findings(version, case, TARGET) == ()
