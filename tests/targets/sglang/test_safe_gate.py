"""KDA whose decays have a bound, on released sglang: decodes, verifies and prompts."""

from __future__ import annotations

import pytest

from fuzzgraph.case import Case
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import (
    KEPT_LESS_AND_LESS,
    MOVED,
    NEWEST,
    decodes,
    found,
    step,
    verifies,
)
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_prefill import prefill_case
from tests.targets.sglang.test_rings import checked

OLDEST = "0.5.17"
_PARTS = (((0, 0, 5), (1, 0, 3)), ((1, 3, 4), (0, 5, 2)), ((2, 0, 7),))
_CASES = {
    "decode": decodes(*MOVED, capture_bs=(2, 3), safe_gate=True),
    "verify": verifies(*KEPT_LESS_AND_LESS, capture_bs=(2,), safe_gate=True),
    "verify by rings": checked(safe_gate=True),
    "prefill": prefill_case(
        "breakable", *_PARTS, recurrent_state=True, dtype="float16", page_size=16,
        max_context_len=32, safe_gate=True,
    ),
}  # fmt: skip


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "target", "case"),
    [
        (OLDEST, "sglang-kda", "decode"),
        (NEWEST, "sglang-kda", "decode"),
        (OLDEST, "sglang-kda-verify", "verify"),
        (NEWEST, "sglang-kda-verify", "verify"),
        (OLDEST, "sglang-kda-verify", "verify by rings"),
        (NEWEST, "sglang-kda-verify", "verify by rings"),
        (OLDEST, "sglang-kda-prefill", "prefill"),
        ("0.5.19", "sglang-kda-prefill", "prefill"),
        (NEWEST, "sglang-kda-glm-prefill", "prefill"),
    ],
)
def test_decays_have_a_bound(workers: Workers, version: str, target: str, case: str) -> None:
    assert found(workers, version, _CASES[case], target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "case"),
    [
        ("decodes_without_a_bound", "decode"),
        ("verifies_without_a_bound", "verify"),
        ("prompts_without_a_bound", "prefill"),
        ("decays_cut_off", "decode"),
        ("gates_inverted", "verify"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, case: str) -> None:
    seen = found(workers, NEWEST, _CASES[case], f"tests.targets.sglang.safe_gate_mutants:{planted}")
    assert ("computes", "temporal") in seen or ("computes", "channel_delta") in seen


@pytest.mark.sglang
@pytest.mark.slow
def test_a_bound_in_the_place_of_parents_is_found(workers: Workers) -> None:
    planted = "tests.targets.sglang.safe_gate_mutants:bound_for_parents"
    assert found(workers, NEWEST, _CASES["verify"], planted) != set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "bound", "unwritten"),
    [("0.5.19", True, False), ("0.5.21", True, True), (NEWEST, True, True), (NEWEST, False, False)],
)
def test_rows_that_pad_a_decode_with_a_bound_hold_what_lay_in_the_pool_from_0_5_21_on(
    workers: Workers, version: str, bound: bool, unwritten: bool
) -> None:
    """See reports/findings/sglang-gdn-padded-rows.md."""
    case = decodes(step((0, 5)), step((0, 6)), capture_bs=(2,), safe_gate=bound)
    seen = found(workers, version, case, "sglang-kda")
    assert seen == ({("reads", "channel_delta")} if unwritten else set())


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_whose_models_set_no_bound_says_so(workers: Workers) -> None:
    said = workers.skipped("0.5.13", decodes(*MOVED, safe_gate=True), "sglang-kda")
    assert "has no model that bounds KDA's decays" in said


def test_only_kda_has_a_bound() -> None:
    case: Case = _CASES["decode"]
    assert "safe_gate=True" in str(open_target("sglang-gdn").unsupported(case.config))
    assert open_target("sglang-kda").unsupported(case.config) is None
