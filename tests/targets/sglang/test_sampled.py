"""Drafts and verifies of requests that sample at temperatures, on released sglang."""

from __future__ import annotations

import pytest

from tests.targets.sglang.hybrid_cases import NEWEST, found
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_dflash import BLOCKS, case, least_page
from tests.targets.sglang.test_dflash_verify import VERIFIES

MUTANTS = "tests.targets.sglang.sampled_mutants"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "backend", "context"),
    [("0.5.16", "flashinfer", 32), ("0.5.21", "flashinfer", 32), (NEWEST, "trtllm-mha", 36)],
)
def test_drafts_are_drawn_at_each_requests_temperature(
    workers: Workers, version: str, backend: str, context: int
) -> None:
    target = f"sglang-dspark-draft-{backend}"
    page = least_page(target)
    of = case(*BLOCKS[:2], page_size=page, max_context_len=context, sampling="draft")
    assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "sampling", "version"),
    [
        ("dflash", "target", "0.5.16"),
        ("dflash", "target", NEWEST),
        ("dspark", "draft", "0.5.17"),
        ("dspark", "draft", NEWEST),
    ],
)
def test_drafts_stay_as_both_models_probabilities_say(
    workers: Workers, kind: str, sampling: str, version: str
) -> None:
    target = f"sglang-{kind}-verify-triton"
    # Batches of four rows run above the ladder.
    of = case(*VERIFIES, blocks="none", sampling=sampling, capture_bs=(2,))
    assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_drafts_of_the_most_likely_tokens_know_no_temperature(workers: Workers) -> None:
    of = case(*BLOCKS, sampling="target")
    assert found(workers, NEWEST, of, "sglang-dflash-draft-fa3") == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("temperatures_of_the_step_before", "markov_tokens"),
        ("greedy_rows_are_drawn", "markov_tokens"),
        ("every_place_has_the_first_ones_noise", "markov_tokens"),
        ("blocks_are_not_counted", "drawn_blocks"),
    ],
)
def test_a_planted_bug_of_drawn_drafts_is_found(workers: Workers, planted: str, named: str) -> None:
    of = case(*BLOCKS[:2], max_context_len=32, sampling="draft")
    assert ("computes", named) in found(workers, NEWEST, of, f"{MUTANTS}:{planted}")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "sampling"),
    [
        ("drafts_are_weighed_at_a_temperature_of_one", "draft"),
        ("drafts_are_weighed_as_sure_ones", "draft"),
        ("tokens_of_greedy_rows_and_of_others_change_places", "draft"),
        ("temperatures_are_spread_over_other_rows", "target"),
        ("what_follows_is_drawn_by_a_drafts_number", "target"),
        ("what_follows_is_taken_behind_the_first", "target"),
    ],
)
def test_a_planted_bug_of_drawn_verifies_is_found(
    workers: Workers, planted: str, sampling: str
) -> None:
    of = case(*VERIFIES, blocks="none", sampling=sampling)
    shown = found(workers, NEWEST, of, f"{MUTANTS}:{planted}")
    assert {("computes", "commits"), ("computes", "committed_tokens")} & shown
