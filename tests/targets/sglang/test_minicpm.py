"""MiniCPM's sparse attention on released sglang: condemned where wrong, acquitted where right."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case

TARGET = "sglang-minicpm"
MUTANTS = "tests.targets.sglang.minicpm_mutants"
SINCE, NEWEST = "0.5.19", "0.5.23"


def sparse_case(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Rows with more blocks than are selected, and rows that see all of their keys."""
    given = {
        "pooled_block": 32, "index_topk": 4, "dense_len": 128, "max_context_len": 256,
        "num_q_heads": 32, "num_kv_heads": 2, "head_dim": 32, "v_head_dim": 32,
        "dtype": "bfloat16", "kv_pool_pages": 1200,
    }  # fmt: skip
    return decode_case(*batches, **{**given, **settings})


LONG_THEN_MIXED = ((250, 190, 140, 133), (231, 7, 128), (256,), (240, 144, 33))
"""Pooled keys end at 144 and 256 on the finer level and, with 33 keys beyond blocks, on neither."""


@pytest.mark.sglang
@pytest.mark.parametrize("version", [SINCE, "0.5.20", "0.5.21", "0.5.22", NEWEST])
def test_every_release_that_has_it_is_right(workers: Workers, version: str) -> None:
    assert workers.findings(version, sparse_case(*LONG_THEN_MIXED), TARGET) == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    "settings",
    [
        {"dtype": "float16"},
        {"num_q_heads": 16, "num_kv_heads": 1},
        {"index_topk": 3, "dense_len": 64},
        {"index_topk": 6, "dense_len": 200},
        {"capture_bs": (1,)},
    ],
    ids=str,
)
def test_other_models_and_batches_without_a_graph_are_right(
    workers: Workers, settings: dict[str, Any]
) -> None:
    assert workers.findings(NEWEST, sparse_case(*LONG_THEN_MIXED, **settings), TARGET) == ()


@pytest.mark.sglang
def test_what_a_longer_row_left_behind_the_selected_keys_is_no_finding(workers: Workers) -> None:
    case = sparse_case(
        (1, 97), (97, 132),
        num_q_heads=16, num_kv_heads=1, index_topk=3, dense_len=98, max_context_len=136,
    )  # fmt: skip
    assert workers.findings(NEWEST, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.parametrize("version", [SINCE, NEWEST])
@pytest.mark.parametrize("context", [252, 253])
def test_contexts_that_end_before_a_pooled_key_fail(
    workers: Workers, version: str, context: int
) -> None:
    found = workers.findings(version, sparse_case((200,), max_context_len=context), TARGET)
    assert [each.oracle for each in found] == ["survival"]
    assert "_replay_sparse_graph_metadata" in found[0].message


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("planted", "oracle"),
    [
        ("lengths_of_the_batch_before", "reference"),
        ("table_of_the_batch_before", "reference"),
        ("history_of_the_batch_before", "reference"),
        ("newest_token_of_the_batch_before", "reference"),
        ("offsets_end_behind_live_rows", "contract"),
        ("dense_rows_without_their_pages", "reference"),
        ("padded_rows_keep_their_lengths", "noninterference"),
        ("first_selecting_row_sees_all", "reference"),
        ("blocks_of_the_other_heads", "reference"),
        ("pages_of_the_row_before", "reference"),
        ("one_block_too_far", "reference"),
        ("worst_blocks", "reference"),
        ("newest_block_whole", "reference"),
        ("rows_of_one_pooled_key_less", "reference"),
        ("new_pooled_keys_taken_for_old_ones", "reference"),
        ("coarser_keys_in_the_finer_ones_slots", "eager"),
        ("mean_without_the_newest_key", "reference"),
        ("past_keys_from_the_slot_before", "reference"),
        ("past_keys_of_the_row_before", "reference"),
        ("pooled_keys_of_the_other_head", "reference"),
        ("pooled_keys_are_not_kept", "reference"),
        ("half_of_a_heads_columns", "reference"),
        ("slots_are_given_twice", "reference"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, oracle: str) -> None:
    case = sparse_case(*LONG_THEN_MIXED)
    found = workers.findings(NEWEST, case, f"{MUTANTS}:{planted}")
    assert oracle in {each.oracle for each in found}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"pooled_block": 0, "dense_len": 0}, "pooled_block must not be 0"),
        ({"pooled_block": 64, "max_context_len": 300}, "32 keys"),
        ({"num_q_heads": 32}, "16 query heads"),
        ({"v_head_dim": 16}, "v_head_dim=16"),
        ({"page_size": 16}, "page_size=16"),
        ({"dtype": "float32"}, "float32"),
    ],
)
def test_other_models_are_refused(changed: dict[str, Any], why: str) -> None:
    config: dict[str, Any] = {
        "pooled_block": 32, "index_topk": 4, "dense_len": 128, "max_context_len": 256,
        "num_q_heads": 16, "head_dim": 32, "v_head_dim": 32, "dtype": "bfloat16",
    }  # fmt: skip
    assert why in str(open_target(TARGET).unsupported(EngineConfig(**{**config, **changed})))
