"""The verify of DFLASH's blocks and the commit behind it, on released sglang."""

from __future__ import annotations

import pytest

from fuzzgraph.errors import FuzzGraphError
from tests.targets.sglang.hybrid_cases import NEWEST, found
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_dflash import BACKENDS, block, case, least_page

MUTANTS = "tests.targets.sglang.dflash_verify_mutants"

# All drafts of row 0 stay, of others one or none; a graph is full, then padded, then full again.
VERIFIES = (
    block((0, 20), (1, 9), (2, 16), (3, 12)),
    block((2, 18), (0, 24), finish=(1,)),
    block((3, 13), (0, 26), (2, 19), (4, 5)),
    block((0, 27), (4, 9)),
)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", ["0.5.16", "0.5.18", "0.5.21", NEWEST])
def test_tokens_that_stay_are_committed(workers: Workers, version: str, backend: str) -> None:
    target = f"sglang-dflash-verify-{backend}"
    for exact in (False, True):  # lengths on the host
        of = case(*VERIFIES, page_size=least_page(target), blocks="none", cpu_seq_lens=exact)
        assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("one_token_less_is_committed", "draft_context"),
        ("rejected_drafts_are_committed", "draft_context"),
        ("places_from_the_first_draft_on", "draft_context"),
        ("slots_of_the_row_before", "draft_context"),
        ("slots_behind_the_block", "commits"),
        ("hidden_states_of_the_token_before", "draft_context"),
        ("next_draft_begins_with_an_accepted_one", "commits"),
        ("outputs_end_with_the_padded_rows", "committed_tokens"),
        ("tokens_of_the_verify_before", "attention"),
    ],
)
def test_a_planted_bug_of_verify_or_commit_is_found(
    workers: Workers, planted: str, named: str
) -> None:
    shown = found(workers, NEWEST, case(*VERIFIES, blocks="none"), f"{MUTANTS}:{planted}")
    assert ("computes", named) in shown


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", ["0.5.16", "0.5.20", NEWEST])
def test_verifies_beside_a_window_of_drafts_see_all_keys(
    workers: Workers, version: str, backend: str
) -> None:
    target = f"sglang-dflash-verify-{backend}"
    of = case(*VERIFIES, page_size=least_page(target), blocks="none", drafted_window=5)
    assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("windows_are_put_into_the_targets_map", ("metadata", "page_table")),
        ("lengths_go_on_from_the_window", ("computes", "commits")),
    ],
)
def test_a_planted_bug_beside_a_window_of_drafts_is_found(
    workers: Workers, planted: str, named: tuple[str, str]
) -> None:
    of = case(*VERIFIES, blocks="none", drafted_window=5)
    assert named in found(workers, NEWEST, of, f"{MUTANTS}:{planted}")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "triton", "trtllm-mha"])
@pytest.mark.parametrize("algorithm", ["dflash", "dspark"])
@pytest.mark.parametrize("version", ["0.5.16", "0.5.20", NEWEST])
def test_blocks_are_verified_by_layers_of_two_kinds(
    workers: Workers, version: str, algorithm: str, backend: str
) -> None:
    target = f"sglang-{algorithm}-verify-{backend}"
    of = case(*VERIFIES, blocks="none", page_size=least_page(target), swa_window=7)
    assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "triton", "trtllm-mha"])
@pytest.mark.parametrize("algorithm", ["dflash", "dspark"])
@pytest.mark.parametrize("version", ["0.5.22", NEWEST])
def test_blocks_are_verified_on_pages_with_virtual_numbers(
    workers: Workers, version: str, algorithm: str, backend: str
) -> None:
    target = f"sglang-{algorithm}-verify-{backend}"
    of = case(*VERIFIES, blocks="none", page_size=16, swa_window=7, virtual_pages=True)
    assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_a_planted_bug_of_virtual_pages_is_found(workers: Workers) -> None:
    of = case(*VERIFIES, blocks="none", swa_window=7, virtual_pages=True)
    shown = found(workers, NEWEST, of, f"{MUTANTS}:tables_end_before_the_block")
    assert ("metadata", "page_table") in shown


@pytest.mark.sglang
@pytest.mark.slow
def test_flashinfers_window_leaves_no_key_of_a_block_out(workers: Workers) -> None:
    """As of other drafts (reports/findings/sglang-verify-window.md)."""
    of = case(*VERIFIES, blocks="none", swa_window=7)
    shown = found(workers, NEWEST, of, "sglang-dflash-verify-flashinfer")
    assert ("computes", "swa_attention") in shown


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_without_such_a_worker_is_refused_in_one_line(workers: Workers) -> None:
    with pytest.raises(FuzzGraphError, match=r"0\.5\.13 has other parts of a worker"):
        workers.findings("0.5.13", case(*VERIFIES, blocks="none"), "sglang-dflash-verify-fa3")
