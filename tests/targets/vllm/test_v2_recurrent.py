"""The V2 runner of released vLLM with recurrent layers, alone and beside attention."""

from __future__ import annotations

import pytest

from fuzzgraph.errors import AdapterUnavailable
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, MOVED, NEWEST, decode
from tests.targets.vllm.test_beside import FULL_THEN_PADDED, TAKEN_OVER, found, wide

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
ALONE = ("vllm-v2-mamba", "vllm-v2-gdn")
BESIDE = ("vllm-v2-mamba-hybrid", "vllm-v2-gdn-hybrid")


@pytest.mark.parametrize("target", [*ALONE, *BESIDE])
def test_states_and_pages_follow_their_requests(vllm: Workers, target: str) -> None:
    assert found(vllm, NEWEST, wide(*TAKEN_OVER), target) == set()
    assert found(vllm, NEWEST, wide(*FULL_THEN_PADDED), target) == set()


@pytest.mark.parametrize("target", ["vllm-v2-gdn", *BESIDE])
def test_0_25_1_has_a_state_for_models_with_attention(vllm: Workers, target: str) -> None:
    assert found(vllm, "0.25.1", wide(*MOVED), target) == set()


def test_0_25_1_serves_models_without_attention_by_the_other_runner(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match=r"vLLM 0\.25\.1 serves a model without attention"):
        vllm.findings("0.25.1", wide(*MOVED), "vllm-v2-mamba")


@pytest.mark.parametrize("target", [*ALONE, *BESIDE])
def test_an_idle_rank_after_a_first_token_leaves_states_alone(vllm: Workers, target: str) -> None:
    """Unlike that of the V1 runner; see reports/findings/vllm-idle-stale-prefilling.md."""
    assert found(vllm, NEWEST, wide(decode((0, 4), (1, 5)), IDLE), target) == set()


def test_an_idle_rank_of_0_25_1_advances_states_of_requests(vllm: Workers) -> None:
    """PR 49757."""
    steps = decode((0, 4), (1, 5)), decode((0, 5), (1, 6)), IDLE
    seen = found(vllm, "0.25.1", wide(*steps), "vllm-v2-gdn-hybrid")
    assert {("writes", "cache"), ("metadata", "state_indices")} <= seen


def test_slots_of_a_batch_with_a_prompt_of_one_token_are_not_written_in_0_25_1(
    vllm: Workers,
) -> None:
    """Issue 57720."""
    seen = found(vllm, "0.25.1", wide(decode((0, 1), (1, 6))), "vllm-v2-mamba-hybrid")
    assert {("metadata", "state_indices"), ("computes", "recurrent")} <= seen


@pytest.mark.parametrize("target", [*ALONE, *BESIDE])
def test_a_prompt_of_one_token_takes_no_graph(vllm: Workers, target: str) -> None:
    """Unlike in the V1 runner; see reports/findings/vllm-one-token-prompt.md."""
    steps = decode((0, 1), (1, 6)), decode((0, 2), (1, 7))
    assert found(vllm, NEWEST, wide(*steps), target) == set()


@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("states_not_staged", {("metadata", "state_indices"), ("computes", "cache")}),
        ("pages_not_staged", {("metadata", "block_table"), ("computes", "attention")}),
    ],
)
def test_a_planted_bug_of_the_block_tables_is_found(
    vllm: Workers, planted: str, named: set[tuple[str, str]]
) -> None:
    target = f"tests.targets.vllm.v2_recurrent_mutants:{planted}"
    assert named <= found(vllm, NEWEST, wide(*TAKEN_OVER), target)
