"""Lightning attention beside softmax attention on released sglang: decodes and verifies."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep
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

TARGET, VERIFIES = "sglang-lightning", "sglang-lightning-verify"
MUTANTS = "tests.targets.sglang.lightning_mutants"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.18", "0.5.21", NEWEST])
def test_states_follow_their_requests(workers: Workers, version: str) -> None:
    assert found(workers, version, decodes(*MOVED, capture_bs=(2, 3)), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_batch_above_the_ladder_takes_no_graph(workers: Workers) -> None:
    assert found(workers, NEWEST, decodes(*MOVED, capture_bs=(2,)), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("steps", [KEPT_LESS_AND_LESS, ONE_TOKEN_PROMPT])
def test_a_verify_goes_on_from_the_state_behind_the_last_token_that_stayed(
    workers: Workers, steps: tuple[ReplayStep, ...]
) -> None:
    assert found(workers, NEWEST, verifies(*steps, capture_bs=(2,)), VERIFIES) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.18", "0.5.21"])
def test_a_commit_of_a_layer_without_convolution_fails_from_0_5_18_to_0_5_22(
    workers: Workers, version: str
) -> None:
    """See reports/findings/sglang-lightning-commit.md."""
    case = verifies(*KEPT_LESS_AND_LESS, capture_bs=(2,))
    (failed,) = workers.findings(version, case, VERIFIES)
    assert failed.clause == "survives"
    assert "must be contiguous; got shape=(1, " in failed.message


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("of", "target", "mended"),
    [
        (decodes(*FULL_THEN_PADDED), TARGET, "mended"),
        (verifies(*PADDED_VERIFY), VERIFIES, "mended_verify"),
    ],
)
def test_padded_rows_hold_what_lay_in_the_pool(
    workers: Workers, of: Case, target: str, mended: str
) -> None:
    """Open in 0.5.23; see reports/findings/sglang-gdn-padded-rows.md."""
    assert ("reads", "linear") in found(workers, NEWEST, of, target)
    assert found(workers, NEWEST, of, f"{MUTANTS}:{mended}") == set()


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"max_context_len": 129}, "max_context_len=129 is more than the 128 positions"),
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
        ("slopes_of_the_next_layer", decodes(*MOVED), ("computes", "temporal")),
        ("heads_swapped", verifies(*KEPT_LESS_AND_LESS), ("computes", "temporal")),
        ("keys_a_position_late", decodes(*MOVED), ("computes", "temporal")),
        ("stale_states", decodes(*FULL_THEN_PADDED), ("metadata", "state_indices")),
        ("slots_of_the_first_batch", decodes(*MOVED, capture_bs=(2, 3)), ("computes", "linear")),
        ("everything_stays", verifies(*KEPT_LESS_AND_LESS), ("computes", "temporal")),
    ],
)
def test_a_planted_bug_of_the_backend_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, of, f"{MUTANTS}:{planted}")
