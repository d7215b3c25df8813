"""Experts beside data-parallel ranks on released sglang: gathered tokens, and what comes back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig, Mode, validate
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_data_ranks import step

pytestmark = [pytest.mark.sglang, pytest.mark.slow]

NEWEST = "0.5.23"
MUTANTS = "tests.targets.sglang.moe_rank_mutants:"
FAMILIES: dict[str, dict[str, Any]] = {
    "sglang-moe": {},
    "sglang-moe-deepseek": {"expert_scoring": "sigmoid"},
    "sglang-moe-gpt-oss": {"expert_activation": "clamped_swiglu"},
    "sglang-moe-verify": {"draft_tokens": 3},
}


def beside_ranks(target: str = "sglang-moe", **settings: Any) -> Case:
    """A rank beside busier ones, as large ones, and idle ones, in graphs and above them."""
    mode: Mode = "target_verify" if target.endswith("verify") else "decode"
    tokens = 3 if mode == "target_verify" else 1
    given = {
        "modes": (mode,), "capture_bs": (1, 2, 4), "max_context_len": 32, "dtype": "float16",
        "num_experts": 8, "experts_per_token": 2, "dp_size": 4, "dp_rank": 2, "ep_size": 4,
        "ep_rank": 2, **FAMILIES[target], **settings,
    }  # fmt: skip
    steps = (
        step(mode, 1, tokens, 5, 4, 0, 1),
        step(mode, 2, tokens, 6 + tokens),
        step(mode, 1, tokens, 8 + 2 * tokens, 8, 0, 0),
        step(mode, 1, tokens, 9 + 3 * tokens, 0, 0, 0),
    )
    return validate(Case(schema_version=1, config=EngineConfig(**given), steps=steps))


def idle_beside_ranks(**settings: Any) -> Case:
    """A rank without requests beside others, in a graph and above them all."""
    config = beside_ranks(**settings).config
    steps = (step("decode", 0, 1, 0, 0, 3, 1), step("decode", 0, 1, 0, 8, 0, 1))
    return validate(Case(schema_version=1, config=config, steps=steps))


def found(workers: Workers, version: str, of: Case, target: str) -> set[tuple[str, str]]:
    """(clause, buffer) of each finding."""
    return {(one.clause, one.buffer) for one in workers.findings(version, of, target)}


@pytest.mark.parametrize(
    ("version", "target"),
    [
        ("0.5.12", "sglang-moe"), ("0.5.17", "sglang-moe"), ("0.5.20", "sglang-moe-gpt-oss"),
        ("0.5.21", "sglang-moe-deepseek"), *((NEWEST, target) for target in FAMILIES),
    ],
)  # fmt: skip
def test_each_token_of_each_rank_has_its_own_experts(
    workers: Workers, version: str, target: str
) -> None:
    assert found(workers, version, beside_ranks(target), target) == set()


@pytest.mark.parametrize("kind", ["apart", "fused"])
def test_each_token_has_the_shared_expert_beside_ranks(workers: Workers, kind: str) -> None:
    of = beside_ranks("sglang-moe-deepseek", shared_experts=kind)
    assert found(workers, NEWEST, of, "sglang-moe-deepseek") == set()


@pytest.mark.parametrize("exchange", ["gatherv", "scatter", "reduce"])
def test_ranks_may_exchange_tokens_in_other_ways(workers: Workers, exchange: str) -> None:
    of = beside_ranks(expert_exchange=exchange)
    assert found(workers, NEWEST, of, "sglang-moe") == set()


def test_an_idle_rank_computes_the_tokens_of_the_others(workers: Workers) -> None:
    assert found(workers, NEWEST, idle_beside_ranks(), "sglang-moe") == set()


@pytest.mark.parametrize("exchange", ["scatterv", "gatherv", "scatter", "reduce"])
def test_graphs_may_sum_the_tokens_of_ranks(workers: Workers, exchange: str) -> None:
    for takes in (1, 1 << 14):  # the tokens of small graphs, and of all
        for of in (beside_ranks, idle_beside_ranks):
            case = of(expert_exchange=exchange, all_reduce_kib=takes)
            assert found(workers, NEWEST, case, "sglang-moe") == set()


def test_releases_that_ask_for_no_custom_all_reduce_say_so(workers: Workers) -> None:
    config = beside_ranks(all_reduce_kib=1)
    said = workers.skipped("0.5.22", config, "sglang-moe")
    assert said == "all_reduce_kib=1 is not driven"


def test_releases_without_an_exchange_say_so(workers: Workers) -> None:
    config = beside_ranks(expert_exchange="reduce").config
    assert "later releases" in workers.unserved("0.5.20", config, "sglang-moe")


@pytest.mark.parametrize(
    ("planted", "exchange", "named"),
    [
        ("device_counts_for_the_host", "scatterv", ("survives", "")),
        ("host_counts_for_the_device", "scatterv", ("survives", "")),
        ("scattered_from_a_row_before", "reduce", ("computes", "experts")),
        ("masked_by_one_too_few", "scatter", ("computes", "experts_of_ranks")),
        ("returned_by_other_sizes", "scatterv", ("survives", "")),
        ("buffer_not_cleared", "scatterv", ("computes", "experts_of_ranks")),
        ("one_row_too_few_gathered", "scatterv", ("metadata", "topk_ids.1")),
    ],
)  # fmt: skip
def test_a_planted_bug_is_found(
    workers: Workers, planted: str, exchange: str, named: tuple[str, str]
) -> None:
    of = beside_ranks(expert_exchange=exchange)
    assert named in found(workers, NEWEST, of, MUTANTS + planted)


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("buffer_not_cleared", ("computes", "experts_of_ranks")),
        ("one_row_too_few_gathered", ("metadata", "topk_ids.1")),
        ("graph_told_of_tokens_without_padding", ("computes", "experts")),
    ],
)
def test_a_planted_bug_of_sums_in_graphs_is_found(
    workers: Workers, planted: str, named: tuple[str, str]
) -> None:
    whole = beside_ranks(expert_exchange="reduce", all_reduce_kib=1 << 14)
    in_graphs = msgspec.structs.replace(whole, steps=whole.steps[:2])
    assert named in found(workers, NEWEST, in_graphs, MUTANTS + planted)
