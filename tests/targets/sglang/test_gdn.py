"""A gated delta net beside attention on released sglang: decodes and verifies."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import (
    FULL_THEN_PADDED,
    KEPT,
    KEPT_IN_A_FULL_GRAPH,
    KEPT_LESS_AND_LESS,
    MOVED,
    NEWEST,
    ONE_TOKEN_PROMPT,
    PADDED_VERIFY,
    VERSIONS,
    decodes,
    few_states,
    found,
    verifies,
)
from tests.targets.sglang.released import Workers

TARGET, VERIFIES = "sglang-gdn", "sglang-gdn-verify"
_TRACKED = decodes(*KEPT, state_track_interval=16)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.10", "0.5.13", "0.5.19", NEWEST])
def test_states_follow_their_requests(workers: Workers, version: str) -> None:
    case = decodes(*MOVED, capture_bs=(2, 3))
    seen = found(workers, version, case, TARGET)
    assert seen == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_batch_above_the_ladder_takes_no_graph(workers: Workers) -> None:
    assert found(workers, NEWEST, decodes(*MOVED, capture_bs=(2,)), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "steps"),
    [
        ("0.5.9", KEPT_IN_A_FULL_GRAPH),
        ("0.5.10", KEPT_IN_A_FULL_GRAPH),
        ("0.5.13", KEPT),
        ("0.5.19", KEPT),
        (NEWEST, KEPT),
    ],
)
def test_states_are_kept_for_the_prefix_cache(
    workers: Workers, version: str, steps: tuple[ReplayStep, ...]
) -> None:
    case = decodes(*steps, state_track_interval=16)
    assert found(workers, version, case, TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("version", "read"), [("0.5.9", True), ("0.5.10", False), (NEWEST, False)])
def test_padded_rows_of_a_decode_of_0_5_9_hold_what_lay_in_the_pool(
    workers: Workers, version: str, read: bool
) -> None:
    seen = found(workers, version, decodes(*FULL_THEN_PADDED), TARGET)
    assert (("reads", "gated_delta") in seen) is read


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.9", "0.5.13", NEWEST])
def test_padded_rows_of_a_verify_hold_what_lay_in_the_pool(workers: Workers, version: str) -> None:
    """Open in 0.5.23; see reports/findings/sglang-gdn-padded-rows.md."""
    assert ("reads", "gated_delta") in found(workers, version, verifies(*PADDED_VERIFY), VERIFIES)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", VERSIONS)
def test_a_verify_goes_on_from_the_state_behind_the_last_token_that_stayed(
    workers: Workers, version: str
) -> None:
    case = verifies(*KEPT_LESS_AND_LESS, capture_bs=(2,))
    assert found(workers, version, case, VERIFIES) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "lost"),
    [("0.5.9", True), ("0.5.13", True), ("0.5.19", False), (NEWEST, False)],
)
def test_beside_a_prompt_of_one_token_the_last_row_has_no_state_up_to_0_5_13(
    workers: Workers, version: str, lost: bool
) -> None:
    """See reports/findings/sglang-gdn-one-token-prompt.md."""
    case = verifies(*ONE_TOKEN_PROMPT, capture_bs=(2,))
    seen = found(workers, version, case, VERIFIES)
    assert ({("metadata", "state_indices"), ("computes", "gated_delta")} <= seen) is lost
    assert lost or not seen


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "short"), [("0.5.9", True), ("0.5.10", True), ("0.5.11", False), (NEWEST, False)]
)
def test_rows_lie_beyond_the_map_of_states_up_to_0_5_10(
    workers: Workers, version: str, short: bool
) -> None:
    """sglang PR 24244."""
    raised = {("survives", "")} if short else set()
    assert found(workers, version, few_states(), TARGET) == raised
    assert found(workers, version, few_states(state_pool_size=0), TARGET) == set()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_context_len": 65}, "max_context_len=65 is more than the 64 positions"),
        ({"recurrent_state": False}, "recurrent_state must be true"),
        ({"dtype": "bfloat16"}, "dtype='bfloat16' is not driven"),
    ],
)
def test_configs_that_the_model_cannot_have_are_refused(
    settings: dict[str, Any], said: str
) -> None:
    config = EngineConfig(**{"recurrent_state": True, **settings})
    assert said in str(open_target(TARGET).unsupported(config))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("stale_states", decodes(*FULL_THEN_PADDED), ("metadata", "state_indices")),
        ("slots_of_the_first_batch", decodes(*MOVED), ("computes", "gated_delta")),
        ("rows_for_slots", decodes(*MOVED), ("metadata", "state_indices")),
        ("slots_of_the_first_batch", decodes(*MOVED, dtype="float16"), ("computes", "gated_delta")),
        (
            "everything_stays",
            verifies(*KEPT_LESS_AND_LESS, dtype="float16"),
            ("computes", "conv[0]"),
        ),
        ("short_map", few_states(), ("survives", "")),
        ("padded_offsets", decodes(*FULL_THEN_PADDED), ("metadata", "query_start_loc")),
        ("tracked_rows_stay", _TRACKED, ("metadata", "mamba_track_mask")),
        ("tracked_a_step_late", _TRACKED, ("computes", "_track_pools_cache[1]")),
        ("kept_for_a_neighbour", _TRACKED, ("writes", "_track_pools_cache[1]")),
        ("state_before_the_last", verifies(*KEPT_LESS_AND_LESS), ("computes", "temporal")),
        ("everything_stays", verifies(*KEPT_LESS_AND_LESS), ("computes", "conv[0]")),
        ("one_scratch_row", verifies(*KEPT_LESS_AND_LESS), ("computes", "temporal")),
        ("betas_of_the_first_row", decodes(*MOVED), ("computes", "gated_delta")),
        ("betas_of_one_head", verifies(*KEPT_LESS_AND_LESS), ("computes", "gated_delta")),
        ("values_for_keys", verifies(*KEPT_LESS_AND_LESS), ("survives", "")),
    ],
)
def test_a_planted_bug_of_the_backend_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, of, f"tests.targets.sglang.gdn_mutants:{planted}")
