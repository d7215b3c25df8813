"""Batches past the blocks of rows that kernels plan at once."""

from __future__ import annotations

from collections import Counter
from functools import cache

from fuzzgraph.capabilities import WIDEST, Capabilities
from fuzzgraph.case import Case, EngineConfig, validate
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.strategies.configs import base_config, swarm_config
from fuzzgraph.strategies.wide_batches import is_wide

WIDE = Capabilities(
    max_wide_batch=265, modes=("decode", "target_verify"), page_sizes=(1, 16, 64), max_q_heads=4,
    max_context_len=512, max_draft_tokens=4,
)  # fmt: skip


@cache
def configs(can: Capabilities = WIDE) -> tuple[EngineConfig, ...]:
    return tuple(swarm_config(can, DEFAULT, number) for number in range(2000))


@cache
def wide_cases() -> tuple[Case, ...]:
    found: list[Case] = []
    for epoch in range(12):
        draw(cases(WIDE, DEFAULT.at(epoch)), 1, 60, found.append)
    return tuple(case for case in found if is_wide(case.config.req_pool_size))


def test_two_of_a_hundred_configs_have_a_wide_batch() -> None:
    assert 20 <= sum(is_wide(config.req_pool_size) for config in configs()) <= 60


def test_wide_batches_end_just_behind_each_block_of_rows() -> None:
    largest = Counter(config.capture_bs[-1] for config in configs())
    assert {65, 66, 129, 257, 265} <= set(largest)


def test_some_graphs_end_far_below_wide_batches_that_run_without_one() -> None:
    far_below = [one for one in configs() if is_wide(one.req_pool_size) and one.capture_bs[-1] < 64]
    assert far_below and all(one.eager_above_ladder for one in far_below)
    cases = (case for case in wide_cases() if case.config.capture_bs[-1] < 64)
    assert max(len(step.rows) for case in cases for step in case.steps) > 64


def test_a_target_without_eager_steps_has_graphs_for_its_wide_batches() -> None:
    wide = [one for one in configs(WIDE.replace(eager_steps=False)) if is_wide(one.req_pool_size)]
    assert wide and all(is_wide(one.capture_bs[-1]) for one in wide)


def test_rows_of_a_wide_batch_are_short_and_narrow() -> None:
    for config in configs():
        if is_wide(config.req_pool_size):
            assert config.max_context_len <= max(16, config.page_size)
            assert config.num_q_heads == config.num_kv_heads == 1


def test_large_pages_leave_the_widest_batches_out() -> None:
    wide = [one for one in configs() if one.page_size == 64 and is_wide(one.req_pool_size)]
    assert wide
    assert all(config.capture_bs[-1] * 64 <= 16384 for config in wide)


def test_live_rows_fill_a_wide_graph_or_leave_most_of_it_padded() -> None:
    rows = {len(step.rows) for case in wide_cases() for step in case.steps}
    assert {1, 129, 257} & rows
    assert max(rows) > 128
    assert min(rows) < 5


def test_cases_with_a_wide_batch_are_valid() -> None:
    for case in wide_cases():
        validate(case)


def test_the_simplest_config_has_no_wide_batch() -> None:
    assert not is_wide(base_config(WIDEST, DEFAULT).req_pool_size)


def test_a_target_without_wide_batches_gets_none() -> None:
    narrow = configs(WIDE.replace(max_wide_batch=0))
    assert not any(is_wide(config.req_pool_size) for config in narrow)


def test_a_size_that_a_test_holds_is_kept() -> None:
    pins = (("capture_bs", ((2, 4),)),)
    held = (swarm_config(WIDE, DEFAULT, number, pins=pins) for number in range(200))
    assert not any(is_wide(config.req_pool_size) for config in held)
