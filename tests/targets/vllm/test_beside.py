"""Released vLLM with attention beside a recurrent layer: pages and states in one pool of blocks."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, MOVED, NEWEST, VERSIONS, case, decode

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
DELTA_NET, MAMBA = "vllm-gdn-hybrid", "vllm-mamba-hybrid"
# A page of 16 tokens of four heads has room for the state of a delta net.
wide = partial(
    case, capture_bs=(2, 4), recurrent_state=True, num_kv_heads=4, head_dim=16, v_head_dim=16
)
FULL_THEN_PADDED = (
    decode((0, 5), (1, 6), (2, 7), (3, 8)),
    decode((0, 6), (1, 7), (2, 8), finish=(3,)),
)
# The third request takes the place, the pages and the state of the first.
TAKEN_OVER = (
    decode((0, 31), (1, 16)),
    decode((0, 32), (1, 17)),
    decode((2, 20), (1, 18), finish=(0,)),
    decode((2, 21), (1, 19)),
)
SERVED_THEN_IDLE = decode((0, 4), (1, 5)), decode((0, 5), (1, 6)), IDLE
OF_0_20_2 = {("metadata", "is_prefilling")}
"""Issue 41841."""


def found(vllm: Workers, version: str, of: Case, target: str) -> set[tuple[str, str]]:
    """(clause, buffer) of each finding, buffers of the cache as `cache`."""
    return {
        (one.clause, "cache" if "kv_caches" in one.buffer else one.buffer)
        for one in vllm.findings(version, of, target)
    }


@pytest.mark.parametrize("steps", [MOVED, FULL_THEN_PADDED, TAKEN_OVER])
@pytest.mark.parametrize("version", VERSIONS)
def test_pages_and_states_follow_their_requests_beside_a_delta_net(
    vllm: Workers, version: str, steps: tuple[ReplayStep, ...]
) -> None:
    seen = found(vllm, version, wide(*steps), DELTA_NET)
    assert seen <= (OF_0_20_2 if version == "0.20.2" else set())


@pytest.mark.parametrize("version", ["0.17.1", "0.25.1", NEWEST])
def test_pages_and_states_follow_their_requests_beside_mamba(vllm: Workers, version: str) -> None:
    narrow = case(*TAKEN_OVER, capture_bs=(2, 4), recurrent_state=True)
    assert found(vllm, version, narrow, MAMBA) == set()


def test_the_last_token_of_a_prompt_of_0_20_2_misses_its_state(vllm: Workers) -> None:
    """PR 42430, as without attention."""
    seen = found(vllm, "0.20.2", wide(decode((0, 5), (1, 6))), MAMBA)
    assert {("metadata", "state_indices"), ("computes", "cache")} <= seen


@pytest.mark.parametrize("target", [DELTA_NET, MAMBA])
def test_a_batch_above_the_ladder_takes_no_graph(vllm: Workers, target: str) -> None:
    assert found(vllm, NEWEST, wide(*MOVED, capture_bs=(2,)), target) == set()


@pytest.mark.parametrize("target", [DELTA_NET, MAMBA])
@pytest.mark.parametrize(("version", "foreign"), [("0.17.1", True), (NEWEST, False)])
def test_an_idle_rank_of_0_17_1_writes_blocks_of_requests(
    vllm: Workers, version: str, target: str, foreign: bool
) -> None:
    """PR 37728."""
    seen = found(vllm, version, wide(*SERVED_THEN_IDLE), target)
    assert (("writes", "cache") in seen) == foreign


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recurrent_state": False}, "recurrent_state must be true"),
        ({"num_kv_heads": 2}, "a page of 1024 numbers is not driven, only from 1304 on"),
        ({"v_head_dim": 8}, "one head size for keys and values"),
        ({"max_context_len": 65}, "max_context_len=65 is more than the 64 positions"),
    ],
)
def test_configs_whose_pages_the_engine_would_make_larger_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    wide = {"num_q_heads": 4, "num_kv_heads": 4, "head_dim": 16, "v_head_dim": 16}
    config = EngineConfig(**{"page_size": 16, "recurrent_state": True, **wide, **settings})
    assert said in str(open_target(DELTA_NET).unsupported(config))


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("pages_of_states", {("metadata", "block_table")}),
        ("states_of_pages", {("metadata", "state_indices"), ("writes", "cache")}),
        ("pages_not_committed", {("metadata", "block_table"), ("computes", "attention")}),
        ("slots_of_states", {("metadata", "slot_mapping"), ("computes", "cache")}),
        ("pages_not_committed_beside_mamba", {("metadata", "block_table")}),
        ("states_of_pages_beside_mamba", {("metadata", "state_indices")}),
    ],
)
def test_a_planted_bug_of_the_groups_is_found(
    vllm: Workers, planted: str, named: set[tuple[str, str]]
) -> None:
    target = f"tests.targets.vllm.beside_mutants:{planted}"
    assert named <= found(vllm, NEWEST, wide(*TAKEN_OVER), target)
