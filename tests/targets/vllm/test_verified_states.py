"""Verifies of drafts by a delta net beside attention, and on the V2 runner of released vLLM."""

from __future__ import annotations

from functools import partial

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, NEWEST, VERSIONS
from tests.targets.vllm.test_beside import OF_0_20_2, TAKEN_OVER, found, wide
from tests.targets.vllm.test_gdn import (
    FEWER_DRAFTS,
    KEPT_LESS_AND_LESS,
    NEWCOMER,
    NO_DRAFTS,
    PADDED_VERIFY,
    verify,
)

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
HYBRID, FLASH = "vllm-gdn-hybrid-verify", "vllm-gdn-hybrid-fa"
V1, V2, V2_HYBRID = "vllm-gdn-verify", "vllm-v2-gdn-verify", "vllm-v2-gdn-hybrid-verify"
verifies = partial(wide, draft_tokens=3)
WAITED = (
    verify((0, 5, 1), (1, 16, 1)),
    verify((0, 8, 3), (1, 19, 3)),
    verify((0, 11, 3)),
    verify((0, 13, 3), (1, 21, 3)),
)


@pytest.mark.parametrize("steps", [KEPT_LESS_AND_LESS, PADDED_VERIFY])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_verify_beside_attention_goes_on_from_what_stayed(
    vllm: Workers, version: str, steps: tuple[ReplayStep, ...]
) -> None:
    seen = found(vllm, version, verifies(*steps), HYBRID)
    assert seen <= (OF_0_20_2 if version == "0.20.2" else set())


@pytest.mark.parametrize("steps", [KEPT_LESS_AND_LESS, PADDED_VERIFY, FEWER_DRAFTS, NEWCOMER])
@pytest.mark.parametrize("target", [V2, V2_HYBRID])
def test_a_verify_of_v2_goes_on_from_what_stayed(
    vllm: Workers, target: str, steps: tuple[ReplayStep, ...]
) -> None:
    assert found(vllm, NEWEST, verifies(*steps), target) == set()


@pytest.mark.parametrize("version", ["0.20.2", "0.25.1", NEWEST])
def test_a_verify_beside_flash_attention_goes_on_from_what_stayed(
    vllm: Workers, version: str
) -> None:
    seen = found(vllm, version, verifies(*KEPT_LESS_AND_LESS), f"{FLASH}-verify")
    assert seen <= (OF_0_20_2 if version == "0.20.2" else set())


def test_what_tells_the_runner_of_a_request_launches_nothing_of_the_step(vllm: Workers) -> None:
    """The run without the past is told of two requests by batches of its own."""
    assert found(vllm, NEWEST, verifies(*NEWCOMER), f"{FLASH}-verify") == set()


@pytest.mark.parametrize("target", [FLASH, "vllm-mamba-hybrid-fa"])
def test_pages_and_states_follow_their_requests_beside_flash_attention(
    vllm: Workers, target: str
) -> None:
    assert found(vllm, NEWEST, wide(*TAKEN_OVER), target) == set()


def test_0_17_1_takes_another_kernel_for_prompts_on_a_hopper_gpu(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match=r"0\.17\.1 computes prompts .* by FlashInfer"):
        vllm.findings("0.17.1", wide(*TAKEN_OVER), FLASH)


@pytest.mark.parametrize("steps", [FEWER_DRAFTS, NO_DRAFTS, NEWCOMER])
def test_requests_with_fewer_drafts_go_on_beside_attention(
    vllm: Workers, steps: tuple[ReplayStep, ...]
) -> None:
    assert found(vllm, NEWEST, verifies(*steps), HYBRID) == set()


@pytest.mark.parametrize(("version", "wrong"), [("0.25.1", True), (NEWEST, False)])
def test_a_verify_beside_attention_without_drafts_of_0_25_1_goes_on_from_the_first_state(
    vllm: Workers, version: str, wrong: bool
) -> None:
    """PR 56531, as without attention."""
    seen = found(vllm, version, verifies(*NO_DRAFTS), HYBRID)
    assert ({("computes", "cache"), ("computes", "gated_delta")} <= seen) == wrong


@pytest.mark.parametrize("target", [V2, V2_HYBRID])
def test_v2_remembers_how_many_tokens_stayed_of_a_request_that_waits(
    vllm: Workers, target: str
) -> None:
    """Unlike V1; see reports/findings/vllm-gdn-waiting.md."""
    assert found(vllm, NEWEST, verifies(*WAITED), target) == set()


def joining(length: int) -> Case:
    """A request of that length, two placeholders among it, joins two that verify."""
    steps = (
        verify((0, 5, 1), (1, 16, 1)),
        verify((0, 8, 3), (1, 19, 3)),
        verify((0, 11, 3), (1, 22, 3), (2, length, 3)),
        verify((0, 14, 3), (1, 25, 3), (2, length + 1, 3)),
    )
    return verifies(*steps, drafted_prompts=True)


def test_placeholders_behind_a_prompt_of_one_token_advance_its_state_on_v2(vllm: Workers) -> None:
    """Open in 0.33.0; see reports/findings/vllm-placeholder-drafts.md."""
    assert ("computes", "cache") in found(vllm, NEWEST, joining(3), f"{V2}-join")


@pytest.mark.parametrize("version", ["0.25.1", NEWEST])
def test_a_prompt_of_one_token_with_placeholders_begins_with_anothers_state_on_v1(
    vllm: Workers, version: str
) -> None:
    """Open in 0.33.0; see reports/findings/vllm-placeholder-drafts.md."""
    seen = found(vllm, version, joining(3), f"{V1}-join")
    assert {("reads", "gated_delta"), ("computes", "gated_delta")} <= seen


@pytest.mark.parametrize(("version", "target"), [("0.25.1", V1), (NEWEST, V1), (NEWEST, V2)])
def test_placeholders_behind_a_longer_prompt_leave_its_state_alone(
    vllm: Workers, version: str, target: str
) -> None:
    """A prefix cache has what is before the prompt's last token."""
    assert found(vllm, version, joining(7), f"{target}-join") == set()


def test_releases_that_put_no_drafts_behind_prompts_are_refused(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match=r"0\.20\.2 puts no drafts behind a prompt"):
        vllm.findings("0.20.2", joining(7), f"{V1}-join")


@pytest.mark.parametrize("target", [V2, V2_HYBRID])
def test_an_idle_rank_of_v2_leaves_the_states_of_the_last_verify_alone(
    vllm: Workers, target: str
) -> None:
    assert found(vllm, NEWEST, verifies(*PADDED_VERIFY, IDLE), target) == set()


def test_releases_whose_v2_takes_no_drafts_without_a_model_are_refused(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match=r"0\.25\.1 has no module .*ngram"):
        vllm.findings("0.25.1", verifies(*PADDED_VERIFY), V2)


def test_pages_without_room_for_a_state_with_all_its_drafts_are_refused() -> None:
    def said(drafts: int) -> str:
        config = EngineConfig(
            modes=("target_verify",), page_size=16, num_q_heads=4, num_kv_heads=4, head_dim=16,
            v_head_dim=16, recurrent_state=True, draft_tokens=drafts, max_context_len=48,
        )  # fmt: skip
        return str(open_target(HYBRID).unsupported(config))

    assert said(3) == "None"
    assert said(4) == "a page of 2048 numbers is not driven, only from 2096 on"


@pytest.mark.parametrize(
    ("planted", "steps", "named"),
    [
        ("states_of_pages", PADDED_VERIFY, {("writes", "cache"), ("computes", "gated_delta")}),
        ("pages_not_committed", PADDED_VERIFY, {("metadata", "block_table")}),
        ("stale_draft_states", PADDED_VERIFY, {("metadata", "spec_state_indices.0")}),
        ("stale_accepted_counts", KEPT_LESS_AND_LESS, {("metadata", "num_accepted_tokens")}),
        ("another_draft_state", KEPT_LESS_AND_LESS, {("computes", "gated_delta")}),
        ("flash_pages_not_committed", PADDED_VERIFY, {("metadata", "block_table")}),
        ("flash_stale_draft_states", PADDED_VERIFY, {("metadata", "spec_state_indices.0")}),
        ("v2_stale_draft_states", PADDED_VERIFY, {("metadata", "spec_state_indices.0")}),
        ("v2_counts_by_row", KEPT_LESS_AND_LESS, {("metadata", "num_accepted_tokens")}),
        ("v2_counts_not_kept", KEPT_LESS_AND_LESS, {("computes", "gated_delta")}),
        ("v2_no_draft_stays", KEPT_LESS_AND_LESS, {("metadata", "sampled_token_ids")}),
        ("v2_hybrid_counts_by_row", KEPT_LESS_AND_LESS, {("computes", "gated_delta")}),
        ("v2_hybrid_another_draft_state", KEPT_LESS_AND_LESS, {("computes", "gated_delta")}),
    ],
)
def test_a_planted_bug_of_a_verified_state_is_found(
    vllm: Workers, planted: str, steps: tuple[ReplayStep, ...], named: set[tuple[str, str]]
) -> None:
    target = f"tests.targets.vllm.verified_states_mutants:{planted}"
    assert named <= found(vllm, NEWEST, verifies(*steps), target)
