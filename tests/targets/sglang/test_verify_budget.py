"""DSpark's verifies by a budget of tokens, on released sglang."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from tests.targets.sglang.hybrid_cases import NEWEST, found
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_dflash import BACKENDS, case, least_page
from tests.targets.sglang.test_dflash_verify import VERIFIES

MUTANTS = "tests.targets.sglang.budget_mutants"


def _verify(*rows: tuple[int, int, int], finish: tuple[int, ...] = ()) -> ReplayStep:
    made = (BatchRow(request=name, seq_len=lens, new_tokens=new) for name, lens, new in rows)
    return ReplayStep(mode="target_verify", rows=tuple(made), finish=finish)


# Rows of any length; padded rows take at most as many tokens as a whole block has.
CUT = (
    _verify((0, 20, 4), (1, 9, 2), (2, 16, 3), (3, 13, 4)),
    _verify((2, 18, 3), (0, 21, 1), finish=(1,)),
    _verify((3, 14, 2), (0, 24, 4), (2, 19, 1)),
    _verify((0, 27, 3), (4, 9, 1), finish=(2,)),
    _verify((0, 29, 2), (4, 13, 4), (5, 8, 4), (3, 17, 4)),
)
BY_TOKENS: dict[str, Any] = {"verify_budget": "compact", "capture_bs": (1, 2, 3, 4, 5)}


def _near_the_end(length: int, target: str) -> Case:
    """Two tokens in a graph of eight: the last row, of this length, has six padded ones behind."""
    return case(
        _verify((0, 20, 1), (1, length, 1)), page_size=least_page(target), blocks="none",
        capture_bs=(2,), max_context_len=64, verify_budget="compact",
    )  # fmt: skip


def _beside_the_table(shown: set[tuple[str, str]]) -> set[tuple[str, str]]:
    """Findings but for what every graph by tokens reads at its capture."""
    return {each for each in shown if not each[1].startswith("py:")}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", ["0.5.16", "0.5.20", NEWEST])
def test_drafts_beyond_a_budget_do_not_stay(workers: Workers, version: str, backend: str) -> None:
    target = f"sglang-dspark-verify-{backend}"
    for exact in (False, True):  # lengths on the host
        of = case(
            *VERIFIES, page_size=least_page(target), blocks="none", cpu_seq_lens=exact,
            verify_budget="cap_accept",
        )  # fmt: skip
        assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "trtllm-mha"])
@pytest.mark.parametrize("version", ["0.5.16", "0.5.17", "0.5.19", "0.5.20", "0.5.22", NEWEST])
def test_rows_of_any_length_are_verified_in_graphs_by_tokens(
    workers: Workers, version: str, backend: str
) -> None:
    target = f"sglang-dspark-verify-{backend}"
    for exact in (False, True):
        of = case(
            *CUT, page_size=least_page(target), blocks="none", cpu_seq_lens=exact, **BY_TOKENS
        )
        assert _beside_the_table(found(workers, version, of, target)) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "trtllm-mha"])
@pytest.mark.parametrize("version", ["0.5.16", "0.5.21", NEWEST])
def test_without_a_profile_graphs_by_tokens_verify_whole_blocks(
    workers: Workers, version: str, backend: str
) -> None:
    target = f"sglang-dspark-verify-{backend}"
    of = case(
        *VERIFIES, page_size=least_page(target), blocks="none", capture_bs=(1, 2),
        verify_budget="verify_all",
    )  # fmt: skip
    assert _beside_the_table(found(workers, version, of, target)) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.16", NEWEST])
def test_graphs_by_tokens_read_before_a_table_at_their_capture(
    workers: Workers, version: str
) -> None:
    """See reports/findings/sglang-dspark-accept-row.md."""
    of = case(*CUT, blocks="none", **BY_TOKENS)
    shown = workers.findings(version, of, "sglang-dspark-verify-fa3")
    assert shown
    assert all("_gather_row_bonus_kernel" in one.message for one in shown)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("backend", "named"), [("fa3", "max_seqlen_q"), ("trtllm-mha", "max_q_len")]
)
def test_the_last_row_of_a_graph_may_have_more_tokens_than_kernels_are_told(
    workers: Workers, backend: str, named: str
) -> None:
    """See reports/findings/sglang-ragged-verify-last-row.md."""
    target = f"sglang-dspark-verify-{backend}"
    of = case(*CUT[:1], page_size=least_page(target), blocks="none", verify_budget="compact")
    shown = found(workers, NEWEST, of, target)
    assert ("metadata", named) in shown
    assert not {clause for clause, _ in shown} & {"computes", "writes"}


@pytest.mark.sglang
@pytest.mark.slow
def test_a_last_row_at_the_end_of_the_context_has_keys_behind_its_page_table(
    workers: Workers,
) -> None:
    """See reports/findings/sglang-ragged-verify-last-row.md."""
    row = BatchRow(request=0, seq_len=64, new_tokens=2)
    config = EngineConfig(
        modes=("target_verify",), capture_bs=(1,), max_context_len=64, kv_pool_pages=264,
        draft_tokens=4, cpu_seq_lens=True, verify_budget="compact",
    )  # fmt: skip
    steps = (ReplayStep(mode="target_verify", rows=(row,)),)
    of = validate(Case(schema_version=1, config=config, steps=steps))
    shown = workers.findings(NEWEST, of, "sglang-dspark-verify-fa3")
    assert "max_seqlen_q" not in {one.buffer for one in shown}
    (table,) = (one for one in shown if one.buffer == "backend.forward_metadata.page_table")
    assert "(64 elements): program (64, 0, 0) at element +64" in table.message


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("version", "backend", "written"),
    [
        ("0.5.16", "fa3", True),
        ("0.5.21", "fa3", True),
        ("0.5.22", "fa3", False),
        (NEWEST, "fa3", False),
        ("0.5.16", "trtllm-mha", True),
        (NEWEST, "trtllm-mha", True),
    ],
)
def test_the_last_row_of_a_graph_may_reach_behind_its_page_table(
    workers: Workers, version: str, backend: str, written: bool
) -> None:
    """See reports/findings/sglang-ragged-verify-last-row.md."""
    target = f"sglang-dspark-verify-{backend}"
    shown = found(workers, version, _near_the_end(60, target), target)
    assert ("reads", "page_table") in shown
    assert (("writes", "page_table") in shown) is written


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "trtllm-mha"])
def test_a_last_row_within_its_page_table_stays_there(workers: Workers, backend: str) -> None:
    """The twin of the test above, with two keys fewer."""
    target = f"sglang-dspark-verify-{backend}"
    shown = found(workers, NEWEST, _near_the_end(58, target), target)
    assert "page_table" not in {buffer for _, buffer in shown}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("budget_and_other_ranks_change_places", ("metadata", "cu_seqlens_q")),
        ("lengths_of_the_step_before", ("computes", "commits")),
        ("lengths_without_the_rows_tokens", ("metadata", "cache_seqlens")),
        ("rows_begin_behind_their_tokens", ("reads", "commits")),
        ("keys_at_the_rows_first_place", ("computes", "draft_context")),
        ("graphs_without_room_for_first_tokens", ("metadata", "input_ids")),
        ("graphs_accept_beyond_the_row", ("computes", "commits")),
        ("places_of_the_rows_first_token", ("metadata", "positions")),
        ("drafts_beyond_the_budget_stay", ("computes", "commits")),
    ],
)
def test_a_planted_bug_of_graphs_by_tokens_is_found(
    workers: Workers, planted: str, named: tuple[str, str]
) -> None:
    of = case(*CUT, blocks="none", cpu_seq_lens=False, **BY_TOKENS)
    assert named in found(workers, NEWEST, of, f"{MUTANTS}:{planted}")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "page"),
    [
        ("offsets_of_the_capture", 1),
        ("offsets_of_the_capture_on_trtllm", 16),
        ("rows_are_one_token_longer", 1),
    ],
)
def test_rows_that_are_cut_in_the_wrong_place_are_found(
    workers: Workers, planted: str, page: int
) -> None:
    of = case(*CUT, page_size=page, blocks="none", cpu_seq_lens=False, **BY_TOKENS)
    shown = found(workers, NEWEST, of, f"{MUTANTS}:{planted}")
    assert "writes" in {clause for clause, _ in shown}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "planted", ["budget_and_other_ranks_change_places", "drafts_beyond_the_budget_stay"]
)
def test_drafts_that_stay_beyond_a_budget_are_found(workers: Workers, planted: str) -> None:
    of = case(*VERIFIES, blocks="none", verify_budget="cap_accept")
    assert ("computes", "commits") in found(workers, NEWEST, of, f"{MUTANTS}:{planted}")
