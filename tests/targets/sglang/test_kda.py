"""KDA beside attention on released sglang: decodes and verifies."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import (
    FULL_THEN_PADDED,
    KEPT_LESS_AND_LESS,
    MOVED,
    NEWEST,
    ONE_TOKEN_PROMPT,
    PADDED_VERIFY,
    decodes,
    found,
    verifies,
)
from tests.targets.sglang.released import Workers

TARGET, VERIFIES = "sglang-kda", "sglang-kda-verify"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.10", "0.5.13", "0.5.17", "0.5.19", NEWEST])
def test_states_follow_their_requests(workers: Workers, version: str) -> None:
    assert found(workers, version, decodes(*MOVED, capture_bs=(2, 3)), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_batch_above_the_ladder_takes_no_graph(workers: Workers) -> None:
    assert found(workers, NEWEST, decodes(*MOVED, capture_bs=(2,)), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.17", "0.5.19", NEWEST])
def test_a_verify_goes_on_from_the_state_behind_the_last_token_that_stayed(
    workers: Workers, version: str
) -> None:
    case = verifies(*KEPT_LESS_AND_LESS, capture_bs=(2,))
    assert found(workers, version, case, VERIFIES) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_prompt_of_one_token_has_its_state(workers: Workers) -> None:
    case = verifies(*ONE_TOKEN_PROMPT, capture_bs=(2,))
    assert found(workers, NEWEST, case, VERIFIES) == set()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_context_len": 33}, "max_context_len=33 is more than the 32 positions"),
        ({"recurrent_state": False}, "recurrent_state must be true"),
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
        ("one_gate_of_a_head", decodes(*MOVED), ("computes", "temporal")),
        ("heads_swapped", verifies(*KEPT_LESS_AND_LESS), ("computes", "temporal")),
        ("betas_of_the_first_row", decodes(*MOVED), ("computes", "temporal")),
        ("stale_states", decodes(*FULL_THEN_PADDED), ("metadata", "state_indices")),
        ("slots_of_the_first_batch", decodes(*MOVED), ("computes", "channel_delta")),
        ("everything_stays", verifies(*KEPT_LESS_AND_LESS), ("computes", "conv[0]")),
    ],
)
def test_a_planted_bug_of_the_backend_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, of, f"tests.targets.sglang.kda_mutants:{planted}")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.17", NEWEST])
def test_padded_rows_of_a_verify_hold_what_lay_in_the_pool(workers: Workers, version: str) -> None:
    """Open in 0.5.23; see reports/findings/sglang-gdn-padded-rows.md."""
    assert ("reads", "channel_delta") in found(workers, version, verifies(*PADDED_VERIFY), VERIFIES)
