"""A model of one gated-delta-net layer on released vLLM's V1 runner: decodes and verifies."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.vllm.cases import IDLE, MOVED, NEWEST, VERSIONS, case, decode, step

pytestmark = [pytest.mark.vllm, pytest.mark.slow]
TARGET, VERIFIES = "vllm-gdn", "vllm-gdn-verify"
PROMPTS, WAITS = "vllm-gdn-verify-prompt", "vllm-gdn-verify-wait"
verify = partial(step, mode="target_verify")
decodes = partial(case, capture_bs=(2, 4), recurrent_state=True)
verifies = partial(decodes, draft_tokens=3)


def found(vllm: Workers, version: str, of: Case, target: str) -> set[tuple[str, str]]:
    """(clause, buffer) of each finding, buffers of the cache as `cache`."""
    return {
        (one.clause, "cache" if "kv_caches" in one.buffer else one.buffer)
        for one in vllm.findings(version, of, target)
    }


FULL_THEN_PADDED = (
    decode((0, 5), (1, 6), (2, 7), (3, 8)),
    decode((0, 6), (1, 7), (2, 8), finish=(3,)),
)
BEGUN = verify((0, 5, 1), (1, 16, 1), (2, 31, 1))
# All drafts stay, then one of two, then none; rows in the order of the engine.
KEPT_LESS_AND_LESS = (
    BEGUN,
    verify((0, 8, 3), (1, 19, 3), (2, 34, 3)),
    verify((1, 22, 3), (2, 37, 3), finish=(0,)),
    verify((2, 39, 3), (1, 24, 3)),
    verify((2, 40, 3), (1, 25, 3)),
)
FEWER_DRAFTS = (
    verify((0, 5, 1), (1, 16, 1)),
    verify((0, 8, 3), (1, 19, 3)),
    verify((0, 10, 2), (1, 20, 3)),
    verify((0, 13, 3), (1, 21, 1)),
    verify((0, 14, 3), (1, 24, 3)),
)
NO_DRAFTS = (
    verify((0, 5, 1), (1, 16, 1)),
    verify((0, 8, 3), (1, 19, 3)),
    verify((0, 9, 1), (1, 19, 1)),
)
NEWCOMER = (
    verify((0, 5, 1), (1, 16, 1)),
    verify((0, 8, 3), (1, 19, 3)),
    verify((0, 10, 3), (1, 20, 3), (2, 9, 1)),
    verify((0, 11, 3), (1, 23, 3), (2, 12, 3)),
)
# Two prompts end in a batch that takes no graph.
NEWCOMER_TWICE = (
    verify((0, 5, 1), (1, 16, 1)),
    verify((0, 8, 3), (1, 19, 3)),
    verify((0, 10, 3), (1, 20, 3), (2, 9, 1), (3, 8, 1)),
)
PADDED_VERIFY = (
    verify((0, 5, 1), (1, 6, 1), (2, 7, 1), (3, 8, 1)),
    verify((0, 8, 3), (1, 9, 3), (2, 10, 3), (3, 11, 3)),
    verify((0, 10, 3), (1, 10, 3), (2, 13, 3), finish=(3,)),
)


@pytest.mark.parametrize("version", VERSIONS)
def test_states_follow_their_requests(vllm: Workers, version: str) -> None:
    assert found(vllm, version, decodes(*MOVED), TARGET) == set()


def test_tokens_of_a_verify_of_one_row_are_no_offsets(vllm: Workers) -> None:
    steps = verify((0, 12, 1)), verify((0, 14, 2)), verify((0, 16, 2))
    alone = verifies(*steps, draft_tokens=2, capture_bs=(2,))
    assert found(vllm, NEWEST, alone, VERIFIES) == set()


def test_a_batch_above_the_ladder_takes_no_graph(vllm: Workers) -> None:
    assert found(vllm, NEWEST, decodes(*MOVED, capture_bs=(2,)), TARGET) == set()


@pytest.mark.parametrize(("version", "foreign"), [("0.17.1", True), (NEWEST, False)])
def test_an_idle_rank_of_0_17_1_advances_states_of_requests(
    vllm: Workers, version: str, foreign: bool
) -> None:
    """PR 37728."""
    steps = decode((0, 4), (1, 5)), decode((0, 5), (1, 6)), IDLE
    assert (("writes", "cache") in found(vllm, version, decodes(*steps), TARGET)) == foreign


def test_an_idle_rank_after_a_first_token_advances_states_of_requests(vllm: Workers) -> None:
    """Open in 0.33.0; see reports/findings/vllm-idle-stale-prefilling.md."""
    seen = found(vllm, NEWEST, decodes(decode((0, 4), (1, 5)), IDLE), TARGET)
    assert {("writes", "cache"), ("metadata", "state_indices")} <= seen


@pytest.mark.parametrize(("version", "foreign"), [("0.20.2", True), ("0.25.1", False)])
def test_an_idle_rank_of_0_20_2_advances_the_states_of_the_last_verify(
    vllm: Workers, version: str, foreign: bool
) -> None:
    """corpus/known_bugs/vllm-idle-draft-states.toml"""
    steps = verifies(*NEWCOMER_TWICE, IDLE, capture_bs=(4,))
    seen = found(vllm, version, steps, VERIFIES)
    assert ({("writes", "cache"), ("metadata", "spec_state_indices.0")} <= seen) == foreign


@pytest.mark.parametrize("steps", [KEPT_LESS_AND_LESS, PADDED_VERIFY])
@pytest.mark.parametrize("version", VERSIONS)
def test_a_verify_goes_on_from_the_state_behind_the_last_token_that_stayed(
    vllm: Workers, version: str, steps: tuple[ReplayStep, ...]
) -> None:
    seen = found(vllm, version, verifies(*steps), VERIFIES)
    assert seen <= {("metadata", "is_prefilling")}


@pytest.mark.parametrize("steps", [FEWER_DRAFTS, NO_DRAFTS, NEWCOMER])
def test_without_a_graph_rows_with_fewer_drafts_go_on(
    vllm: Workers, steps: tuple[ReplayStep, ...]
) -> None:
    assert found(vllm, NEWEST, verifies(*steps), VERIFIES) == set()


@pytest.mark.parametrize(("version", "wrong"), [("0.25.1", True), (NEWEST, False)])
def test_a_batch_without_drafts_of_0_25_1_goes_on_from_the_first_state(
    vllm: Workers, version: str, wrong: bool
) -> None:
    """PR 56531."""
    seen = found(vllm, version, verifies(*NO_DRAFTS), VERIFIES)
    assert ({("computes", "cache"), ("computes", "gated_delta")} <= seen) == wrong


@pytest.mark.parametrize(("version", "raises"), [("0.17.1", True), ("0.20.2", False)])
def test_the_end_of_a_prompt_beside_verifies_raises_in_0_17_1(
    vllm: Workers, version: str, raises: bool
) -> None:
    """PR 34871."""
    messages = [one.message for one in vllm.findings(version, verifies(*NEWCOMER), VERIFIES)]
    assert any("num_spec_decodes: 2" in message for message in messages) == raises


def test_the_end_of_a_prompt_that_is_as_long_as_a_verify_takes_its_graph(vllm: Workers) -> None:
    """Issue 53051, open in 0.33.0."""
    seen = found(vllm, NEWEST, verifies(verify((0, 5, 3), (1, 16, 3))), PROMPTS)
    assert {("metadata", "spec_state_indices.0"), ("computes", "cache")} <= seen


def test_a_request_that_waits_forgets_how_many_tokens_stayed(vllm: Workers) -> None:
    """Open in 0.33.0; see reports/findings/vllm-gdn-waiting.md."""
    steps = (
        verify((0, 5, 1), (1, 16, 1)),
        verify((0, 8, 3), (1, 19, 3)),
        verify((0, 11, 3)),
        verify((0, 13, 3), (1, 21, 3)),
    )
    seen = found(vllm, NEWEST, verifies(*steps), WAITS)
    assert {("metadata", "num_accepted_tokens"), ("computes", "cache")} <= seen


@pytest.mark.parametrize(
    ("steps", "said"),
    [
        ((verify((0, 5, 3)),), "steps[0] with 3 tokens of a prompt is not driven"),
        (
            (verify((0, 5, 1), (1, 6, 1)), verify((0, 8, 3)), verify((0, 11, 3), (1, 9, 3))),
            "steps[1] without a request that comes again is not driven",
        ),
    ],
)
def test_open_bugs_have_a_target_of_their_own(
    vllm: Workers, steps: tuple[ReplayStep, ...], said: str
) -> None:
    assert said in vllm.skipped(NEWEST, verifies(*steps), VERIFIES)


def test_releases_before_0_17_keep_states_the_other_way_round(vllm: Workers) -> None:
    with pytest.raises(AdapterUnavailable, match=r"vLLM 0\.15\.1 keeps states of GDNAttention"):
        vllm.findings("0.15.1", decodes(*MOVED), TARGET)


def test_0_16_0_decodes_and_refuses_drafts_of_another_model(vllm: Workers) -> None:
    assert vllm.findings("0.16.0", decodes(*MOVED), TARGET) == ()
    with pytest.raises(AdapterUnavailable, match=r"0\.16\.0 verifies drafts of Qwen3-Next alone"):
        vllm.findings("0.16.0", verifies(verify((0, 5, 3))), VERIFIES)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_context_len": 65}, "max_context_len=65 is more than the 64 positions"),
        ({"recurrent_state": False}, "recurrent_state must be true"),
        (
            {"modes": ("target_verify",), "max_context_len": 15},
            "a model of 16 tokens keeps the block table",
        ),
    ],
)
def test_configs_that_the_layer_cannot_tell_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    config = EngineConfig(**{"page_size": 16, "recurrent_state": True, **settings})
    target = VERIFIES if "modes" in settings else TARGET
    assert said in str(open_target(target).unsupported(config))


@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("stale_states", decodes(*FULL_THEN_PADDED), ("metadata", "state_indices")),
        ("stale_draft_states", verifies(*PADDED_VERIFY), ("metadata", "spec_state_indices.0")),
        ("padded_offsets", verifies(*PADDED_VERIFY), ("metadata", "query_start_loc")),
        ("chunks_one_late", verifies(*NEWCOMER_TWICE), ("survives", "")),
        ("stale_accepted_counts", verifies(*KEPT_LESS_AND_LESS), ("computes", "cache")),
        ("another_draft_state", verifies(*KEPT_LESS_AND_LESS), ("computes", "gated_delta")),
    ],
)
def test_a_planted_bug_of_the_builder_is_found(
    vllm: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(vllm, NEWEST, of, f"tests.targets.vllm.gdn_mutants:{planted}")


@pytest.mark.parametrize(
    "planted",
    [
        "delta_net_rejects_all",
        "delta_net_accepts_all",
        "delta_net_bonus_of_another_row",
        "hybrid_rows_the_other_way_round",
    ],
)
def test_a_wrong_answer_of_a_verify_is_found(vllm: Workers, planted: str) -> None:
    wide = {"num_kv_heads": 4, "head_dim": 16, "v_head_dim": 16}
    of = verifies(*KEPT_LESS_AND_LESS, **wide)
    named = found(vllm, NEWEST, of, f"tests.targets.vllm.answer_mutants:{planted}")
    assert ("metadata", "sampled_token_ids") in named
