"""DSpark's drafts by a Markov head, its verify, and the commit behind it, on released sglang."""

from __future__ import annotations

import pytest

from fuzzgraph.errors import FuzzGraphError
from tests.targets.sglang.hybrid_cases import NEWEST, found
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_dflash import BACKENDS, BLOCKS, case, least_page
from tests.targets.sglang.test_dflash_verify import VERIFIES

MUTANTS = "tests.targets.sglang.dspark_mutants"


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", ["0.5.16", "0.5.17", "0.5.19", "0.5.21", NEWEST])
def test_tokens_that_stay_are_committed(workers: Workers, version: str, backend: str) -> None:
    target = f"sglang-dspark-verify-{backend}"
    for exact in (False, True):  # lengths on the host
        of = case(*VERIFIES, page_size=least_page(target), blocks="none", cpu_seq_lens=exact)
        assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("version", ["0.5.17", "0.5.18", "0.5.20", "0.5.22", NEWEST])
def test_drafts_are_those_of_a_markov_head(workers: Workers, version: str, backend: str) -> None:
    target = f"sglang-dspark-draft-{backend}"
    for blocks, exact in (("whole", False), ("causal", True)):
        of = case(*BLOCKS, page_size=least_page(target), blocks=blocks, cpu_seq_lens=exact)
        assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["flashinfer", "triton", "trtllm-mha"])
@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_models_that_do_not_sample_at_a_blocks_first_token_draft_too(
    workers: Workers, version: str, backend: str
) -> None:
    target = f"sglang-dspark-draft-{backend}"
    for exact in (False, True):
        of = case(
            *BLOCKS, page_size=least_page(target), cpu_seq_lens=exact, sample_from_anchor=False
        )
        assert found(workers, version, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
def test_flash_attention_takes_such_blocks_for_one_token_narrower(workers: Workers) -> None:
    """See reports/findings/sglang-dspark-draft-width.md."""
    of = case(*BLOCKS, cpu_seq_lens=False, sample_from_anchor=False)
    shown = found(workers, NEWEST, of, "sglang-dspark-draft-fa3")
    assert {("metadata", "cu_seqlens_q"), ("computes", "attention")} <= shown


@pytest.mark.sglang
@pytest.mark.slow
def test_triton_takes_blocks_for_one_token_wider(workers: Workers) -> None:
    """In 0.5.16 alone; see reports/findings/sglang-dspark-draft-width.md."""
    shown = found(workers, "0.5.16", case(*BLOCKS), "sglang-dspark-draft-triton")
    assert "writes" in {clause for clause, _ in shown}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.16"])
def test_the_first_release_drafts_where_widths_are_right(workers: Workers, version: str) -> None:
    for backend, blocks in (("fa3", "whole"), ("flashinfer", "whole"), ("trtllm-mha", "causal")):
        target = f"sglang-dspark-draft-{backend}"
        of = case(*BLOCKS, page_size=least_page(target), blocks=blocks)
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
        ("next_draft_begins_with_another_rows_token", "commits"),
        ("lengths_without_the_token_that_follows", "commits"),
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
@pytest.mark.parametrize(
    ("planted", "named"),
    [
        ("drafts_of_the_places_before", ("computes", "markov_tokens")),
        ("drafts_of_live_rows_lie_behind_padded_ones", ("computes", "markov_tokens")),
        ("drafts_are_corrected_by_another_row", ("computes", "markov_tokens")),
        ("drafts_are_corrected_by_token_zero", ("computes", "markov_tokens")),
        ("blocks_begin_with_another_rows_token", ("metadata", "input_ids")),
        ("places_of_a_block_begin_behind_its_first", ("metadata", "positions")),
    ],
)
def test_a_planted_bug_of_drafts_is_found(
    workers: Workers, planted: str, named: tuple[str, str]
) -> None:
    of = case(*BLOCKS, cpu_seq_lens=False)
    assert named in found(workers, NEWEST, of, f"{MUTANTS}:{planted}")


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_without_such_a_worker_is_refused_in_one_line(workers: Workers) -> None:
    for kind, blocks in (("draft", "whole"), ("verify", "none")):
        with pytest.raises(FuzzGraphError, match=r"0\.5\.13 "):
            workers.findings("0.5.13", case(*BLOCKS, blocks=blocks), f"sglang-dspark-{kind}-fa3")
