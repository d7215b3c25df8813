"""Prompts of Qwen's sparse attention in prefill graphs that break at its indexer and at it."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from fuzzgraph.errors import InvalidCase
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_prefill import Rows, prefill_case

TARGET = "sglang-qsa-prefill"
MUTANTS = "tests.targets.sglang.qsa_prefill_mutants"
NEWEST = "0.5.23"

PROMPTS: tuple[Rows, ...] = (
    ((0, 0, 33), (1, 0, 7)),
    ((1, 0, 27), (0, 64, 3)),
    ((0, 64, 20),),
    ((2, 64, 1), (3, 0, 20)),
)
"""Prompts with and without a past side by side, in either order; with more groups than are selected
and with none; some end within a group."""


def prompts(*batches: Rows, **settings: Any) -> Case:
    given = {
        "page_size": 64, "max_context_len": 192, "index_group": 4, "index_topk": 3,
        "head_dim": 8, "v_head_dim": 8, "num_q_heads": 2, "num_kv_heads": 1,
        "capture_tokens": (8, 40), "kv_pool_pages": 40,
    }  # fmt: skip
    return prefill_case("breakable", *(batches or PROMPTS), **{**given, **settings})


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("index_topk", [0, 1, 3])
@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_prompts_are_right(workers: Workers, version: str, index_topk: int) -> None:
    case = prompts(index_topk=index_topk)
    assert workers.findings(version, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_positions_of_tokens_that_are_no_more_are_no_part_of_a_prompt(workers: Workers) -> None:
    case = prompts(((0, 0, 2),), ((0, 0, 1), (1, 0, 1), (2, 0, 1)), capture_tokens=(1,))
    assert workers.findings(NEWEST, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_prompts_in_half_precision_are_right(workers: Workers) -> None:
    case = prompts(dtype="float16", num_q_heads=4, num_kv_heads=2)
    assert workers.findings(NEWEST, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "output"),
    [
        ("first_group_not_made", "group_keys"),
        ("groups_of_the_first_prompt", "group_keys"),
        ("group_that_ends_unseen", "attention"),
        ("first_pending_token_lost", "group_keys"),
        ("selection_of_the_capture", "attention"),
        ("past_of_the_first_prompt_decides", "attention"),
        ("prompts_of_the_other_end", "attention"),
        ("columns_of_the_shortest_prompt", "attention"),
        ("lengths_from_the_batchs_start", "attention"),
        ("keys_one_slot_late", "group_strays"),
        ("streams_of_the_capture", "hidden_streams"),
        ("keys_of_the_first_prompt_scored", "attention"),
        ("newest_token_unseen", "attention"),
        ("past_of_the_first_prompt_packed", "attention"),
        ("keys_of_the_first_prompt_attended", "attention"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, output: str) -> None:
    found = workers.findings(NEWEST, prompts(), f"{MUTANTS}:{planted}")
    assert output in {each.buffer for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_generated_cases_without_ranks_are_silent(workers: Workers, version: str) -> None:
    drawn = generated(
        TARGET,
        lambda config: config.attn_tp_size == config.dp_size == 1 and config.index_topk > 0,
        blocks=6,
        each=12,
        enough=12,
    )
    assert len(drawn) >= 12
    for case in drawn:
        assert workers.findings(version, case, TARGET) == ()


def test_a_prompt_goes_on_behind_a_whole_page() -> None:
    with pytest.raises(InvalidCase, match="whole pages of 64 tokens"):
        prompts(((0, 60, 4),))
