"""Full prefill graphs of latent attention in released sglang: parts over chunks of a past, merged
by their logsumexps."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import Rows, prefill_case

_TARGET = "sglang-full-prefill-mla"
_MUTANTS = "tests.targets.sglang.latent_prefill_mutants"

GROWING: tuple[Rows, ...] = (
    ((0, 0, 6), (1, 0, 2)), ((0, 6, 2), (2, 2, 4)), ((3, 9, 3),)
)  # fmt: skip
"""Prompts without a past, pasts of other lengths in one batch, a longer one alone."""
HEALTHY: dict[str, tuple[tuple[Rows, ...], dict[str, Any]]] = {
    "no past, then pasts of several lengths": (GROWING, {}),
    "rows with a past beside one without": (
        (((0, 0, 2), (1, 5, 1), (2, 3, 4)), ((0, 2, 3), (2, 7, 2))), {}),
    "pages of 16": (GROWING, {"page_size": 16, "max_context_len": 32}),
    "heads whose number is no power of two": (GROWING, {"num_q_heads": 3, "head_dim": 12}),
    "half precision": (GROWING, {"dtype": "bfloat16"}),
    "longer chunks": ((((0, 30, 6), (1, 0, 2)), ((0, 36, 2), (2, 2, 4))),
        {"max_context_len": 40, "kv_pool_pages": 200, "capture_tokens": (4, 8, 16)}),
    "two ranks that share the heads": ((((0, 0, 8),), ((1, 3, 2), (2, 0, 2))),
        {"attn_tp_size": 2, "attn_tp_rank": 1}),
}  # fmt: skip


def latent_case(*batches: Rows, **settings: Any) -> Any:
    shape = {"attention": "mla", "num_kv_heads": 1, "num_q_heads": 2, "head_dim": 10}
    return prefill_case(
        "full", *batches, **{"prefill_slots": 3, "v_head_dim": 8, **shape, **settings}
    )


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"])
def test_a_healthy_engine_is_silent(workers: Workers, version: str) -> None:
    found = {
        name: workers.findings(version, latent_case(*batches, **settings), _TARGET)
        for name, (batches, settings) in HEALTHY.items()
    }
    assert found == dict.fromkeys(HEALTHY, ())


@pytest.mark.sglang
@pytest.mark.slow
def test_the_first_release_lacks_the_count_and_shows_no_more(workers: Workers) -> None:
    """sglang PR 35588; from 0.5.16 on ranks of attention-TP have the count."""
    found = {
        name: {
            (one.oracle, one.buffer)
            for one in workers.findings("0.5.17", latent_case(*batches, **settings), _TARGET)
        }
        for name, (batches, settings) in HEALTHY.items()
    }
    assert found.pop("two ranks that share the heads") == set()
    assert found == dict.fromkeys(found, {("contract", "num_token_non_padded")})


@pytest.mark.sglang
@pytest.mark.slow
def test_a_past_of_more_chunks_than_graphs_hold_goes_without_one(workers: Workers) -> None:
    case = latent_case(((0, 30, 2),), max_context_len=40, kv_pool_pages=200, capture_tokens=(2, 3))
    assert workers.findings("0.5.23", case, _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("rows", "settings"),
    [
        # Thirteen sums, each rounded to half precision.
        (((0, 514, 256),), {
            "max_context_len": 770, "kv_pool_pages": 800, "capture_tokens": (1,),
            "req_pool_size": 1, "dtype": "bfloat16", "max_kv_chunk_capacity": 40,
        }),
        # Three chunks in the graph and three without one, of other lengths.
        (((0, 23, 8),), {
            "max_context_len": 32, "kv_pool_pages": 260, "capture_tokens": (8, 32),
            "req_pool_size": 3, "prefill_slots": 3, "max_kv_chunk_capacity": 8,
        }),
    ],
)  # fmt: skip
def test_sums_of_many_chunks_may_round(
    workers: Workers, rows: Rows, settings: dict[str, Any]
) -> None:
    shape = {"prefill_slots": 1, "num_q_heads": 1, "head_dim": 4, "v_head_dim": 2}
    case = latent_case(rows, **{**shape, **settings})
    assert workers.findings("0.5.23", case, _TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.20", "0.5.23"])
@pytest.mark.parametrize(
    ("mutant", "oracle"),
    [
        ("stores_sums_by_head", "reference"),
        ("hands_on_no_sums", "reference"),
        ("attends_to_the_first_chunk", "reference"),
        ("keeps_the_first_sums", "reference"),
        ("merges_nothing", "reference"),
        ("takes_keys_for_values", "reference"),
        ("leaves_the_last_chunk_out", "reference"),
        ("keeps_chunk_lengths", "reference"),
        ("takes_too_few_chunks", "survival"),  # by an assertion of the engine
        ("lists_every_chunk_from_the_start", "reference"),
    ],
)
def test_one_changed_line_is_found_out(
    workers: Workers, version: str, mutant: str, oracle: str
) -> None:
    found = workers.findings(version, latent_case(*GROWING), f"{_MUTANTS}:{mutant}")
    assert oracle in {one.oracle for one in found}


def test_widths_that_no_block_of_triton_has_are_not_driven() -> None:
    config = EngineConfig(
        modes=("prefill",), capture_tokens=(4,), prefill_runner="full", attention="mla",
        num_q_heads=2, num_kv_heads=1, head_dim=8, v_head_dim=6,
    )  # fmt: skip
    assert open_target(_TARGET).unsupported(config) == "no block of Triton is 6 columns wide"
