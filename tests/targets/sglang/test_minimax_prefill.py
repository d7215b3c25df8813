"""Prompts of MiniMax's sparse attention in prefill graphs that break at it."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import Rows, prefill_case

TARGET = "sglang-minimax-prefill"
MUTANTS = "tests.targets.sglang.minimax_prefill_mutants"
NEWEST = "0.5.23"

PROMPTS_IN_PARTS: tuple[Rows, ...] = (
    ((0, 0, 33), (1, 0, 7)),
    ((1, 7, 27), (0, 33, 3)),
    ((0, 36, 20),),
    ((2, 48, 1), (3, 3, 20)),
)
"""Rows with more blocks than are selected beside rows with one, a key that begins a block, and a
request that takes a row anew."""


def sparse_prompts(**settings: Any) -> Case:
    given = {
        "page_size": 16, "max_context_len": 64, "dtype": "bfloat16", "index_block": 16,
        "head_dim": 128, "v_head_dim": 128, "num_q_heads": 2, "num_kv_heads": 1, "index_topk": 2,
        "capture_tokens": (8, 40), "kv_pool_pages": 30,
    }  # fmt: skip
    return prefill_case("breakable", *PROMPTS_IN_PARTS, **{**given, **settings})


@pytest.mark.sglang
@pytest.mark.parametrize("page_size", [1, 32])
@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_prompts_are_right(workers: Workers, version: str, page_size: int) -> None:
    case = sparse_prompts(page_size=page_size, kv_pool_pages=300)
    assert workers.findings(version, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.parametrize("unit", [True, False])
def test_prompts_with_kv_in_fp8_are_right(workers: Workers, unit: bool) -> None:
    case = sparse_prompts(kv_dtype="float8_e4m3fn", unit_kv_scale=unit)
    assert workers.findings(NEWEST, case, TARGET) == ()


@pytest.mark.sglang
def test_prompts_that_count_as_one_token_are_found(workers: Workers) -> None:
    found = workers.findings(NEWEST, sparse_prompts(), f"{MUTANTS}:lengths_of_another_object")
    assert "reference" in {each.oracle for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "oracle"),
    [
        ("past_forgotten", "reference"),
        ("scores_of_the_new_tokens_alone", "footprint"),
        ("rows_of_the_other_end", "reference"),
        ("dense_metadata_of_the_first_batch", "contract"),
        ("index_keys_not_stored", "reference"),
        ("keys_of_the_layer_before", "reference"),
        ("keys_of_the_first_request_scored", "reference"),
        ("newest_block_not_local", "reference"),
        ("last_block_not_selected", "reference"),
        ("own_key_not_attended", "reference"),
        ("later_keys_attended", "reference"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, oracle: str) -> None:
    found = workers.findings(NEWEST, sparse_prompts(), f"{MUTANTS}:{planted}")
    assert oracle in {each.oracle for each in found}
