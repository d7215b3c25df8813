"""Short convolutions beside attention on released sglang: decodes and verifies."""

from __future__ import annotations

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

TARGET, VERIFIES = "sglang-short-conv", "sglang-short-conv-verify"
MUTANTS = "tests.targets.sglang.short_conv_mutants"
VERIFY = verifies(*KEPT_LESS_AND_LESS, capture_bs=(2,))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.11", "0.5.14", "0.5.15", "0.5.18", NEWEST])
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_inputs_follow_their_requests(workers: Workers, version: str, dtype: str) -> None:
    case = decodes(*MOVED, capture_bs=(2, 3), dtype=dtype)
    assert found(workers, version, case, TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.13", NEWEST])
def test_rows_that_pad_a_decode_change_nothing(workers: Workers, version: str) -> None:
    assert found(workers, version, decodes(*FULL_THEN_PADDED), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_batch_above_the_ladder_takes_no_graph(workers: Workers) -> None:
    assert found(workers, NEWEST, decodes(*MOVED, capture_bs=(2,)), TARGET) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
@pytest.mark.parametrize("steps", [KEPT_LESS_AND_LESS, ONE_TOKEN_PROMPT])
def test_a_verify_goes_on_from_the_inputs_of_the_last_tokens_that_stayed(
    workers: Workers, version: str, steps: tuple[ReplayStep, ...]
) -> None:
    case = verifies(*steps, capture_bs=(2,), dtype="float16")
    assert found(workers, version, case, VERIFIES) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_rows_that_pad_a_verify_hold_what_lay_in_the_pool(workers: Workers) -> None:
    """Open in 0.5.23; see reports/findings/sglang-gdn-padded-rows.md."""
    case = verifies(*PADDED_VERIFY)
    assert found(workers, NEWEST, case, VERIFIES) == {("reads", "gated_conv")}
    assert found(workers, NEWEST, case, f"{MUTANTS}:mended_verify") == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_up_to_0_5_17_no_server_has_them_beside_triton_attention(workers: Workers) -> None:
    config = decodes(*MOVED).config
    assert "values of layer 0" in workers.unserved("0.5.17", config, TARGET)
    assert workers.unserved("0.5.18", config, TARGET) == ""


def test_the_model_asks_for_states() -> None:
    config = EngineConfig(recurrent_state=False)
    assert "recurrent_state must be true" in str(open_target(TARGET).unsupported(config))


def test_no_states_are_kept_for_the_prefix_cache() -> None:
    config = EngineConfig(recurrent_state=True, state_track_interval=16)
    assert "state_track_interval" in str(open_target(TARGET).unsupported(config))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("slots_of_the_capture", decodes(*MOVED), ("computes", "conv[0]")),
        ("slots_elsewhere", decodes(*MOVED), ("metadata", "slots")),
        ("padded_rows_keep_slots", decodes(*FULL_THEN_PADDED), ("writes", "conv[0]")),
        ("gates_swapped", decodes(*MOVED, dtype="float16"), ("computes", "gated_conv")),
        ("kept_without_the_gate", VERIFY, ("computes", "gated_conv")),
        ("one_scratch_row", VERIFY, ("computes", "conv[0]")),
        ("state_before_the_last", VERIFY, ("computes", "conv[0]")),
        ("everything_stays", VERIFY, ("computes", "conv[0]")),
    ],
)
def test_a_planted_bug_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, of, f"{MUTANTS}:{planted}")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "planted", "of", "named"),
    [
        ("0.5.12", "stale_rows", decodes(*FULL_THEN_PADDED), ("writes", "conv[0]")),
        ("0.5.13", "rows_for_slots", decodes(*MOVED), ("computes", "conv[0]")),
    ],
)
def test_a_planted_bug_of_an_older_layer_is_found(
    workers: Workers, version: str, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named not in found(workers, version, of, TARGET)
    assert named in found(workers, version, of, f"{MUTANTS}:{planted}")
