"""Prompts of DeepSeek V4's attention in prefill graphs that break at it."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from fuzzgraph.errors import InvalidCase
from tests.targets.sglang.released import Workers, generated
from tests.targets.sglang.test_prefill import Rows, prefill_case

TARGET = "sglang-dsv4-prefill"
_MUTANTS = "tests.targets.sglang.dsv4_prefill_mutants"

_RELEASES = ["0.5.13", "0.5.16", "0.5.17", "0.5.19", "0.5.20", "0.5.21", "0.5.22", "0.5.23"]
_PROMPTS: tuple[Rows, ...] = (
    ((0, 0, 7),),
    ((0, 7, 3), (1, 0, 2)),
    ((1, 130, 5), (2, 254, 4)),
    ((3, 0, 1),),
)
"""Longer, then shorter; a past within the window and beyond it, across a page."""


def prompts(kind: str = "window", batches: tuple[Rows, ...] = _PROMPTS, **settings: Any) -> Case:
    fixed: dict[str, Any] = {
        "page_size": 256, "max_context_len": 512, "capture_tokens": (4, 12), "req_pool_size": 4,
        "kv_pool_pages": 16, "attention": "mla", "head_dim": 8, "v_head_dim": 8,
        "num_q_heads": 2, "num_kv_heads": 1, "kv_compression": kind,
    }  # fmt: skip
    return prefill_case("breakable", *batches, **{**fixed, **settings})


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", _RELEASES)
@pytest.mark.parametrize("kind", ["window", "c4", "c128"])
def test_prompts_give_attention_over_their_window_and_compressed_keys(
    workers: Workers, version: str, kind: str
) -> None:
    assert workers.findings(version, prompts(kind), TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("mutant", "kind", "oracle"),
    [
        ("takes_a_count_for_kept_rows", "window", "survival"),
        ("keeps_metadata_of_the_capture", "c128", "survival"),  # FlashMLA's plan has its shapes
        ("keeps_the_plan_of_the_capture", "c4", "reference"),
        ("gives_lengths_without_the_last_token", "window", "contract"),
    ],
)
def test_one_changed_line_is_found_out(
    workers: Workers, mutant: str, kind: str, oracle: str
) -> None:
    found = workers.findings("0.5.23", prompts(kind), f"{_MUTANTS}:{mutant}")
    assert oracle in {one.oracle for one in found}


_ALONE: tuple[Rows, ...] = (
    ((0, 0, 7),),
    ((1, 272, 12),),
    ((2, 0, 6), (3, 300, 6)),
    ((0, 289, 100),),
)
"""Alone with more keys than are selected, beside another, and longer than any graph."""
_GATHERED: dict[str, Any] = {"index_topk": 64, "index_gather_threshold": 1}


def gathering(**settings: Any) -> Case:
    """Prompts whose indexer's keys are gathered wherever a graph does not compute them."""
    return prompts("c4", _ALONE, **{**_GATHERED, **settings})


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", [each for each in _RELEASES if each != "0.5.13"])
@pytest.mark.parametrize("kernel", ["planned", "unplanned"])
def test_keys_that_are_gathered_give_the_same_selection(
    workers: Workers, version: str, kernel: str
) -> None:
    assert workers.findings(version, gathering(topk_kernel=kernel), TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", "0.5.23"])
@pytest.mark.parametrize("memory", [1, 2048])
def test_gathered_keys_are_scored_in_chunks_of_rows(
    workers: Workers, version: str, memory: int
) -> None:
    assert workers.findings(version, gathering(index_logits_bytes=memory), TARGET) == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "mutant",
    [
        "gathers_keys_of_the_first_token",
        "gathers_as_many_keys_as_there_are_new",
        "scores_no_first_key",
        "scores_no_row_that_selects_nearly_all",
        "takes_pages_of_a_token_for_those_of_selected_keys",
    ],
)
def test_a_line_about_gathered_keys_that_is_changed_is_found_out(
    workers: Workers, mutant: str
) -> None:
    assert workers.findings("0.5.23", gathering(), f"{_MUTANTS}:{mutant}")


@pytest.mark.sglang
@pytest.mark.slow
def test_a_chunk_that_scores_other_rows_is_found_out(workers: Workers) -> None:
    case = gathering(index_logits_bytes=2048)
    assert workers.findings(
        "0.5.23", case, "tests.targets.sglang.indexer_mutants:scores_of_the_first_rows"
    )


@pytest.mark.sglang
def test_a_server_with_the_default_threshold_gathers_no_keys_of_short_prompts(
    workers: Workers,
) -> None:
    case = gathering(index_gather_threshold=8192)
    assert not workers.findings("0.5.23", case, f"{_MUTANTS}:scores_no_first_key")


@pytest.mark.sglang
def test_a_release_that_gathers_no_keys_is_not_run_with_a_threshold(workers: Workers) -> None:
    assert "index_gather_threshold must be 8192" in workers.skipped("0.5.13", gathering(), TARGET)


@pytest.mark.sglang
@pytest.mark.slow
def test_generated_prompts_with_gathered_keys_are_silent(workers: Workers) -> None:
    drawn = generated(
        TARGET, lambda config: config.index_gather_threshold < 8192, blocks=8, each=20, enough=6
    )
    assert len(drawn) >= 6
    for case in drawn:
        assert workers.findings("0.5.23", case, TARGET) == ()


def test_keys_of_groups_of_four_alone_are_gathered() -> None:
    with pytest.raises(InvalidCase, match="needs kv_compression='c4'; got 'c128'"):
        prompts("c128", index_gather_threshold=1)
