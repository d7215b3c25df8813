"""Experts that DeepEP exchanges tokens for on released sglang: sent tokens, and what comes back."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, validate
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_data_ranks import step
from tests.targets.sglang.test_moe_ranks import found

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

TARGET = "sglang-moe-deepep"
MUTANTS = "tests.targets.sglang.low_latency_mutants:"
NEWEST = "0.5.23"


def exchanged(**settings: Any) -> Case:
    """A rank beside busier ones, as large ones, and idle ones, in graphs and above them."""
    steps = (
        step("decode", 1, 1, 5, 4, 0, 1),
        step("decode", 2, 1, 7),
        step("decode", 1, 1, 10, 8, 0, 0),
        step("decode", 1, 1, 12, 0, 0, 0),
    )
    return validate(Case(schema_version=1, config=_config(**settings), steps=steps))


def exchanged_by_an_idle_rank(**settings: Any) -> Case:
    """A rank without requests beside others, in a graph and above them all."""
    steps = (step("decode", 0, 1, 0, 0, 3, 1), step("decode", 0, 1, 0, 8, 0, 1))
    return validate(Case(schema_version=1, config=_config(**settings), steps=steps))


def _config(**settings: Any) -> EngineConfig:
    given = {
        "modes": ("decode",), "capture_bs": (1, 2, 4), "max_context_len": 32, "dtype": "bfloat16",
        "num_experts": 8, "experts_per_token": 2, "dp_size": 4, "dp_rank": 2, "ep_size": 4,
        "ep_rank": 2, **settings,
    }  # fmt: skip
    return EngineConfig(**given)


@pytest.mark.parametrize("version", ["0.5.16", "0.5.21", NEWEST])
def test_each_token_of_each_rank_has_its_own_experts(workers: Workers, version: str) -> None:
    assert found(workers, version, exchanged(), TARGET) == set()


def test_an_idle_rank_computes_the_tokens_that_others_send(workers: Workers) -> None:
    for settings in ({}, {"dp_rank": 0, "ep_rank": 0, "experts_per_token": 3}):
        assert found(workers, NEWEST, exchanged_by_an_idle_rank(**settings), TARGET) == set()


def test_one_rank_alone_exchanges_nothing(workers: Workers) -> None:
    config = _config(dp_size=1, dp_rank=0, ep_size=1, ep_rank=0)
    alone = validate(Case(schema_version=1, config=config, steps=(step("decode", 1, 1, 5),)))
    assert "dp_size must be 2 or more" in workers.skipped(NEWEST, alone, TARGET)


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("tokens_not_received", ("metadata", "received_counts")),
        ("results_not_received", ("computes", "experts")),
        ("last_row_not_activated", ("computes", "experts_of_ranks")),
        ("padded_tokens_sent", ("metadata", "topk_ids.0")),
        ("last_token_masked", ("metadata", "dispatched_ids.0")),
        ("results_weighed_alike", ("computes", "experts")),
        ("sent_to_neighbours", ("metadata", "dispatched_ids.0")),
        ("dispatched_once_more", ("metadata", "used")),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, named: tuple[str, str]) -> None:
    assert named in found(workers, NEWEST, exchanged(), MUTANTS + planted)
