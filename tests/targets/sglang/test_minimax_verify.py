"""MiniMax's verifies with ROCm, its decodes on other GPUs than Hoppers, and KV in FP8."""

from __future__ import annotations

from itertools import product
from typing import Any

import pytest

from fuzzgraph.case import Case, EngineConfig
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_minimax import LONG_THEN_LONGER, sparse_case

VERIFY, TRITON = "sglang-minimax-verify", "sglang-minimax-triton"
HOPPER, OTHER = "sglang-minimax", "sglang-minimax-flashinfer"
MUTANTS = "tests.targets.sglang.minimax_verify_mutants"
NEWEST = "0.5.23"


def verify_case(*batches: tuple[int, ...], **settings: Any) -> Case:
    """Two drafts of each row, which may lie in two blocks."""
    given: dict[str, Any] = {
        "platform": "rocm",
        "dtype": "float16",
        "draft_tokens": 2,
        "spec_steps": 1,
    }
    given |= {"max_context_len": 122}
    return sparse_case(*batches, mode="target_verify", **{**given, **settings})


ACROSS_BLOCKS = ((65, 90), (111, 7), (113, 113), (80,))


@pytest.mark.sglang
@pytest.mark.parametrize(("version", "page_size"), [("0.5.22", 16), (NEWEST, 1), (NEWEST, 32)])
def test_each_draft_sees_the_blocks_of_its_own_keys(
    workers: Workers, version: str, page_size: int
) -> None:
    case = verify_case(*ACROSS_BLOCKS, page_size=page_size)
    assert workers.findings(version, case, VERIFY) == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("planted", "oracle"),
    [
        ("drafts_without_their_own_key", "reference"),
        ("drafts_see_later_drafts", "reference"),
        ("requests_repeated_as_a_whole", "reference"),
        ("scores_as_long_as_at_capture", "footprint"),
        ("lengths_of_the_requests", "reference"),
        ("rows_frozen_at_capture", "reference"),
        ("scores_without_the_drafts_eagerly", "eager"),
        ("dense_metadata_of_the_capture", "contract"),
        ("verified_index_keys_not_stored", "reference"),
        ("newest_key_not_scored", "reference"),
    ],
)
def test_a_planted_bug_of_verifies_is_found(workers: Workers, planted: str, oracle: str) -> None:
    found = workers.findings(NEWEST, verify_case(*ACROSS_BLOCKS), f"{MUTANTS}:{planted}")
    assert oracle in {each.oracle for each in found}


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("platform", ["cuda", "rocm"])
@pytest.mark.parametrize("version", ["0.5.16", "0.5.19", "0.5.21", "0.5.22", NEWEST])
def test_decodes_beside_triton_attention_are_right(
    workers: Workers, version: str, platform: str
) -> None:
    case = sparse_case(*LONG_THEN_LONGER, (80,), platform=platform, dtype="float16")
    assert workers.findings(version, case, TRITON) == ()


FP8 = {"kv_dtype": "float8_e4m3fn"}


@pytest.mark.sglang
@pytest.mark.parametrize("unit", [True, False])
@pytest.mark.parametrize("target", [HOPPER, OTHER])
def test_kv_in_fp8_is_right_whatever_index_keys_are(
    workers: Workers, target: str, unit: bool
) -> None:
    case = sparse_case(*LONG_THEN_LONGER, (80,), **FP8, unit_kv_scale=unit)
    assert workers.findings(NEWEST, case, target) == ()


@pytest.mark.sglang
@pytest.mark.slow
def test_the_first_release_knows_no_scales_of_kv_in_fp8(workers: Workers) -> None:
    """Its sparse layer stores keys as they are: wrong for checkpoints that have scales."""
    assert workers.findings("0.5.16", sparse_case(*LONG_THEN_LONGER), HOPPER) == ()
    whole, scaled = (
        sparse_case(*LONG_THEN_LONGER, **FP8, unit_kv_scale=unit) for unit in (True, False)
    )
    assert workers.findings("0.5.16", whole, HOPPER) == ()
    found = {(each.oracle, each.buffer) for each in workers.findings("0.5.16", scaled, HOPPER)}
    assert ("reference", "attention") in found


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("target", "version"),
    list(product((HOPPER, OTHER), ("0.5.17", "0.5.18", "0.5.19", "0.5.20", "0.5.21", "0.5.22"))),
)
def test_every_release_is_right_with_kv_in_either_dtype(
    workers: Workers, version: str, target: str
) -> None:
    assert workers.findings(version, sparse_case(*LONG_THEN_LONGER), target) == ()
    for unit in (True, False):
        case = sparse_case(*LONG_THEN_LONGER, **FP8, unit_kv_scale=unit)
        assert workers.findings(version, case, target) == ()


@pytest.mark.sglang
@pytest.mark.parametrize(
    "planted",
    [
        "fused_store_whatever_the_scales",
        "keys_without_their_scale",
        "values_by_the_scale_of_keys",
        "index_keys_by_the_scale_of_keys",
    ],
)
def test_a_planted_bug_of_scales_is_found(workers: Workers, planted: str) -> None:
    found = workers.findings(NEWEST, sparse_case(*LONG_THEN_LONGER, **FP8), f"{MUTANTS}:{planted}")
    assert "reference" in {each.oracle for each in found}


@pytest.mark.sglang
def test_a_fused_store_beside_index_keys_in_another_dtype_is_refused(workers: Workers) -> None:
    case = sparse_case(*LONG_THEN_LONGER, **FP8, unit_kv_scale=True)
    (found,) = workers.findings(NEWEST, case, f"{MUTANTS}:fused_store_beside_another_dtype")
    assert found.oracle == "survival"
    assert "store_kv_index: idx_k_cache must be float8_e4m3fn" in found.message


@pytest.mark.sglang
@pytest.mark.parametrize(
    "planted", ["keys_of_the_first_block_scored", "first_block_attended_for_each"]
)
def test_a_planted_bug_of_other_gpus_is_found(workers: Workers, planted: str) -> None:
    found = workers.findings(NEWEST, sparse_case(*LONG_THEN_LONGER), f"{MUTANTS}:{planted}")
    assert "reference" in {each.oracle for each in found}


def test_only_servers_with_rocm_capture_verifies() -> None:
    config = verify_case((65,), platform="cuda").config
    assert "platform" in str(open_target(VERIFY).unsupported(config))


def test_a_scale_of_one_is_that_of_kv_in_fp8() -> None:
    config = EngineConfig(unit_kv_scale=True)
    assert "unit_kv_scale" in str(open_target("sglang-fa3").unsupported(config))
