"""Mamba2 beside attention on released sglang: decodes and verifies."""

from __future__ import annotations

import pytest

from fuzzgraph.case import Case
from tests.targets.sglang.hybrid_cases import (
    FULL_THEN_PADDED,
    KEPT,
    KEPT_IN_A_FULL_GRAPH,
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

pytestmark = [pytest.mark.sglang, pytest.mark.slow]
VERSIONS = ("0.5.9", "0.5.13", NEWEST)
TARGET, VERIFIES = "sglang-mamba", "sglang-mamba-verify"
_MUTANTS = "tests.targets.sglang.mamba2_mutants"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_states_follow_their_requests(workers: Workers, version: str, dtype: str) -> None:
    case = decodes(*MOVED, capture_bs=(2, 3), dtype=dtype)
    assert found(workers, version, case, TARGET) == set()


@pytest.mark.parametrize(
    ("version", "wrong"),
    [("0.5.13", False), ("0.5.15", True), ("0.5.16", True), ("0.5.17", False), (NEWEST, False)],
)
def test_states_are_kept_in_graphs_smaller_than_the_largest_but_in_0_5_15_and_0_5_16(
    workers: Workers, version: str, wrong: bool
) -> None:
    """sglang PR 32555: the end of the largest graph's destinations is read."""
    of = decodes(*KEPT_IN_A_FULL_GRAPH, state_track_interval=16)
    seen = found(workers, version, of, TARGET)
    assert (("computes", "temporal") in seen) is wrong
    assert wrong or not seen


def test_before_0_5_13_no_states_of_mamba2_are_kept(workers: Workers) -> None:
    said = workers.skipped("0.5.12", decodes(*KEPT, state_track_interval=16), TARGET)
    assert "keeps no states of such layers" in said


def test_a_batch_above_the_ladder_takes_no_graph(workers: Workers) -> None:
    assert found(workers, NEWEST, decodes(*MOVED, capture_bs=(2,)), TARGET) == set()


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("dtype", ["float32", "float16"])
def test_a_verify_goes_on_from_the_state_behind_the_last_token_that_stayed(
    workers: Workers, version: str, dtype: str
) -> None:
    case = verifies(*KEPT_LESS_AND_LESS, capture_bs=(2,), dtype=dtype)
    assert found(workers, version, case, VERIFIES) == set()


@pytest.mark.parametrize(("version", "lost"), [("0.5.13", True), (NEWEST, False)])
def test_beside_a_prompt_of_one_token_the_last_row_has_no_state_up_to_0_5_13(
    workers: Workers, version: str, lost: bool
) -> None:
    """See reports/findings/sglang-gdn-one-token-prompt.md."""
    case = verifies(*ONE_TOKEN_PROMPT, capture_bs=(2,))
    assert (("metadata", "state_indices") in found(workers, version, case, VERIFIES)) is lost


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize(
    ("case", "target"),
    [(decodes(*FULL_THEN_PADDED), TARGET), (verifies(*PADDED_VERIFY), VERIFIES)],
    ids=["decode", "verify"],
)
def test_what_the_convolution_leaves_of_padded_rows_enters_the_recurrence(
    workers: Workers, version: str, case: Case, target: str
) -> None:
    """PR 30974, open in 0.5.23."""
    assert ("reads", "recurrent") in found(workers, version, case, target)


@pytest.mark.parametrize(
    ("case", "mended"),
    [(decodes(*FULL_THEN_PADDED), "mended"), (verifies(*PADDED_VERIFY), "mended_verify")],
    ids=["decode", "verify"],
)
def test_zeros_behind_the_convolution_mend_it(workers: Workers, case: Case, mended: str) -> None:
    assert found(workers, NEWEST, case, f"{_MUTANTS}:{mended}") == set()


@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("stale_states", decodes(*FULL_THEN_PADDED), ("metadata", "state_indices")),
        ("rows_for_slots", decodes(*MOVED), ("metadata", "state_indices")),
        ("rows_for_slots", decodes(*MOVED, dtype="float16"), ("computes", "selective_scan")),
        ("everything_stays", verifies(*KEPT_LESS_AND_LESS), ("computes", "temporal")),
    ],
)
def test_a_planted_bug_of_the_backend_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(workers, NEWEST, of, f"{_MUTANTS}:{planted}")
