"""Blocks that DFLASH drafts by one forward, on released sglang."""

from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import FuzzGraphError
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import NEWEST, found, step
from tests.targets.sglang.released import Workers

MUTANTS = "tests.targets.sglang.dflash_mutants"
BACKENDS = ("fa3", "flashinfer", "triton", "trtllm-mha")

block = partial(step, new=4, mode="target_verify")

# Rows grow and change places; a graph is full, then padded, then full again.
BLOCKS = (
    block((0, 20), (1, 9), (2, 16), (3, 12)),
    block((2, 19), (0, 23), finish=(1,)),
    block((3, 14), (0, 25), (2, 20), (4, 5)),
)


def case(*steps: ReplayStep, page_size: int = 1, blocks: str = "whole", **settings: Any) -> Case:
    given = {"max_context_len": 33, "draft_tokens": 4, "capture_bs": (4,), "cpu_seq_lens": True}
    config = EngineConfig(
        modes=("target_verify",),
        page_size=page_size,
        kv_pool_pages=256 // page_size + 8,
        drafted_blocks=blocks,  # type: ignore[arg-type]
        **{**given, **settings},  # type: ignore[arg-type]
    )
    return validate(Case(schema_version=1, config=config, steps=steps))


def least_page(target: str) -> int:
    return int(min(open_target(target).capabilities.page_sizes))


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("blocks", ["whole", "causal"])
def test_drafted_blocks_are_what_their_model_defines(
    workers: Workers, backend: str, blocks: str
) -> None:
    target = f"sglang-dflash-draft-{backend}"
    for exact in (False, True):  # lengths on the host
        of = case(*BLOCKS, page_size=least_page(target), blocks=blocks, cpu_seq_lens=exact)
        assert found(workers, NEWEST, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("backend", ["fa3", "triton", "trtllm-mha"])
def test_blocks_behind_a_window_see_its_last_keys(workers: Workers, backend: str) -> None:
    target = f"sglang-dflash-draft-{backend}"
    of = case(*BLOCKS, page_size=least_page(target), drafted_window=5)
    assert found(workers, NEWEST, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(("version", "broken"), [("0.5.18", False), (NEWEST, True)])
def test_flashinfers_plan_leaves_a_windows_block_out(
    workers: Workers, version: str, broken: bool
) -> None:
    """From 0.5.19 on; see reports/findings/sglang-dflash-window-plan.md."""
    of = case(*BLOCKS, drafted_window=5)
    shown = found(workers, version, of, "sglang-dflash-draft-flashinfer")
    assert (("metadata", "planned_kv_indptr") in shown) is broken
    assert broken or shown == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.16", "0.5.20"])
def test_older_releases_draft_blocks_too(workers: Workers, version: str) -> None:
    assert found(workers, version, case(*BLOCKS), "sglang-dflash-draft-triton") == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "named", "settings"),
    [
        ("embeddings_of_the_batch_before", ("computes", "block_hidden"), {}),
        ("drafts_of_the_places_before", ("computes", "block_tokens"), {}),
        ("drafts_of_live_rows_lie_behind_padded_ones", ("computes", "block_tokens"), {}),
        ("slots_from_the_first_draft_on", ("metadata", "seq_lens"), {}),
        ("lengths_on_the_host_without_the_block", ("metadata", "planned_kv_indptr"), {}),
        ("windows_begin_with_the_request", ("computes", "attention"), {"drafted_window": 5}),
        ("a_kernel_has_failed", ("survives", ""), {}),
    ],
)
def test_a_planted_bug_of_drafted_blocks_is_found(
    workers: Workers, planted: str, named: tuple[str, str], settings: dict[str, Any]
) -> None:
    assert named in found(workers, NEWEST, case(*BLOCKS, **settings), f"{MUTANTS}:{planted}")


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "found"),
    [
        ("sglang-dflash-draft-trtllm-mha", False),
        (f"{MUTANTS}:attention_in_the_dtype_of_queries", True),
    ],
    ids=["as released", "in the dtype of queries"],
)
def test_a_draft_model_cannot_compute_on_attention_in_fp8(
    workers: Workers, target: str, found: bool
) -> None:
    of = case(*BLOCKS, page_size=16, dtype="bfloat16", kv_dtype="float8_e4m3fn")
    shown = workers.findings(NEWEST, of, target)
    said = "float8_e4m3fn [16, 4] for what attention computed, on which no model can compute"
    assert [said in one.message for one in shown] == ([True] if found else [])


@pytest.mark.sglang
@pytest.mark.slow
def test_a_release_without_folded_samplers_is_refused_in_one_line(workers: Workers) -> None:
    with pytest.raises(FuzzGraphError, match=r"0\.5\.13 folds no sampler into graphs"):
        workers.findings("0.5.13", case(*BLOCKS), "sglang-dflash-draft-fa3")
