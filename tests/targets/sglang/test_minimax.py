"""MiniMax's sparse attention on released sglang: condemned where wrong, acquitted where right."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers, decode_case

TARGET = "sglang-minimax"
MUTANTS = "tests.targets.sglang.minimax_mutants"
SINCE, NEWEST = "0.5.16", "0.5.23"


def sparse_case(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Rows with more blocks than are selected, and rows with one block."""
    given = {
        "page_size": 16, "max_context_len": 120, "dtype": "bfloat16", "index_block": 16,
        "head_dim": 128, "v_head_dim": 128, "num_q_heads": 4, "num_kv_heads": 2,
    }  # fmt: skip
    return decode_case(*batches, **{**given, "index_topk": 3, **settings})


LONG_THEN_LONGER = ((66, 90), (111, 7), (113, 113))


@pytest.mark.sglang
@pytest.mark.parametrize("page_size", [1, 16, 32])
def test_either_reading_of_pages_is_right(workers: Workers, page_size: int) -> None:
    case = sparse_case(*LONG_THEN_LONGER, (80,), page_size=page_size)
    assert workers.findings(NEWEST, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "version", [SINCE, "0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22"]
)
@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_every_release_that_has_it_is_right(workers: Workers, version: str, dtype: str) -> None:
    case = sparse_case(*LONG_THEN_LONGER, (80,), dtype=dtype)
    assert workers.findings(version, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_blocks_and_pages_as_long_as_a_servers_are_right(workers: Workers) -> None:
    case = sparse_case(
        (300, 129), (390, 7), index_block=128, page_size=128, max_context_len=400, index_topk=2
    )
    assert workers.findings(NEWEST, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_blocks_longer_than_a_tuners_shortest_tile_are_right_before_tiles_are_pruned(
    workers: Workers,
) -> None:
    case = sparse_case((300, 129), index_block=128, max_context_len=400, index_topk=2)
    assert workers.findings(SINCE, case, TARGET) == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("planted", "oracle"),
    [
        ("scores_as_long_as_at_capture", "footprint"),
        ("dense_metadata_of_the_capture", "contract"),
        ("lengths_without_the_new_token", "reference"),
        ("stores_where_it_was_captured", "noninterference"),
        ("rows_of_the_other_end", "reference"),
        ("keys_of_the_layer_before", "reference"),
        ("index_keys_not_stored", "reference"),
        ("newest_block_not_local", "reference"),
        ("first_block_scored", "reference"),
        ("keys_of_the_first_request_scored", "reference"),
        ("key_behind_the_last_attended", "reference"),
        ("last_block_not_attended", "reference"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, oracle: str) -> None:
    case = sparse_case(*LONG_THEN_LONGER)
    found = workers.findings(NEWEST, case, f"{MUTANTS}:{planted}")
    assert oracle in {each.oracle for each in found}


@pytest.mark.parametrize(
    ("changed", "why"),
    [
        ({"index_block": 0}, "index_block must not be 0"),
        ({"head_dim": 64, "v_head_dim": 64}, "128"),
        ({"page_size": 4}, "page_size=4"),
    ],
)
def test_other_models_are_refused(changed: dict[str, Any], why: str) -> None:
    config: dict[str, Any] = {"index_block": 16, "index_topk": 3, "head_dim": 128}
    config |= {"dtype": "bfloat16"} | {"v_head_dim": 128, "page_size": 16, **changed}
    assert why in str(open_target(TARGET).unsupported(EngineConfig(**config)))
