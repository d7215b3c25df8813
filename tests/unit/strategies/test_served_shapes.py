"""Profile `device`: shapes that servers have, where a target has them."""

from __future__ import annotations

from functools import cache

import pytest

from fuzzgraph.case import Case, EngineConfig, validate
from fuzzgraph.ports import use_device
from fuzzgraph.strategies import CI, DEVICE, NIGHTLY, Profile, cases, draw
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.strategies.wide_batches import is_wide
from fuzzgraph.targets import open_target

TARGETS = ("sglang-fa3", "sglang-triton-verify", "sglang-trtllm-mla", "vllm-triton")


@cache
def drawn(target: str, profile: Profile = DEVICE) -> tuple[Case, ...]:
    opened = open_target(target)
    use_device(opened, "cuda")
    found: list[Case] = []
    supports = lambda config: opened.unsupported(config) is None  # noqa: E731
    for epoch in range(3):
        strategy = cases(opened.capabilities, profile.at(epoch), supports=supports)
        draw(strategy, 7, 40, found.append)
    return tuple(found)


def served(target: str) -> list[EngineConfig]:
    """Without the simplest config of each pool, which is as tiny as everywhere."""
    return [case.config for case in drawn(target) if case.config.num_q_heads >= 4]


def slots(config: EngineConfig) -> int:
    page = config.page_size
    return config.req_pool_size * -(-config.max_context_len // page) * page


@pytest.mark.parametrize("target", TARGETS)
def test_most_configs_have_the_heads_and_contexts_of_models(target: str) -> None:
    configs = served(target)
    assert len(configs) > len(drawn(target)) / 2
    assert min(each.head_dim for each in configs) >= 64
    assert min(each.max_context_len for each in configs) >= 200


@pytest.mark.parametrize("target", TARGETS)
def test_cases_are_whole_and_reach_long_contexts_and_large_batches(target: str) -> None:
    for case in drawn(target):
        validate(case)
    steps = [step for case in drawn(target) for step in case.steps]
    assert max(row.seq_len for step in steps for row in step.rows) > 16384
    assert max(len(step.rows) for step in steps) > 24


@pytest.mark.parametrize("target", TARGETS)
def test_what_the_rows_of_a_batch_own_is_bounded(target: str) -> None:
    assert max(map(slots, served(target))) <= (1 << 16) + 256 * 64
    numbers = [slots(each) * each.num_kv_heads * each.head_dim for each in served(target)]
    assert max(numbers) <= (1 << 26) + 256 * 64 * 8 * 256


@pytest.mark.parametrize("target", ["sglang-fa3", "sglang-triton-verify"])
def test_pages_are_as_small_and_as_large_as_those_of_servers(target: str) -> None:
    pages = {each.page_size for each in served(target)}
    assert {1, 64} < pages


def test_heads_are_as_narrow_and_as_wide_as_those_of_models() -> None:
    assert {each.head_dim for each in served("sglang-fa3")} == {64, 128, 256}


@pytest.mark.parametrize("profile", [CI, NIGHTLY], ids=lambda each: each.name)
def test_other_profiles_stay_tiny_on_a_device(profile: Profile) -> None:
    configs = [case.config for case in drawn("sglang-fa3", profile)]
    assert max(config.num_q_heads for config in configs) <= 4
    assert max(config.max_context_len for config in configs) <= 16384
    assert all(each.req_pool_size <= 16 or is_wide(each.req_pool_size) for each in configs)


def test_what_a_test_pins_is_kept() -> None:
    target = open_target("sglang-fa3")
    use_device(target, "cuda")
    pins = (("max_context_len", (32,)),)
    found = [swarm_config(target.capabilities, DEVICE, each, pins=pins) for each in range(60)]
    assert {config.max_context_len for config in found} == {32}


def test_a_target_without_wide_heads_keeps_its_own() -> None:
    can = open_target("builtin").capabilities
    found = [swarm_config(can, DEVICE, each) for each in range(1, 40)]
    assert max(config.head_dim for config in found) <= can.max_head_dim
    assert max(config.num_q_heads for config in found) <= can.max_q_heads
