"""Sparse indexers of released sglang on another device and with other budgets than elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case, Mode
from fuzzgraph.errors import InvalidCase
from tests.targets.sglang.released import Workers, decode_case, generated
from tests.targets.sglang.test_dsv4 import paged_case
from tests.targets.sglang.test_dsv4_verify import verified

pytestmark = pytest.mark.sglang

_MUTANTS = "tests.targets.sglang.indexer_mutants:"
_BLACKWELL: dict[str, Any] = {
    "page_size": 64,
    "attention": "mla",
    "v_head_dim": 2,
    "max_context_len": 200,
    "compute_capability": 10,
    "sparse_kernel": "flashmla_sparse",
}


def on_blackwell(*batches: tuple[int, ...], mode: Mode, **settings: Any) -> Case:
    """Rows of a sparse layer on a device with compute capability 10."""
    return decode_case(*batches, mode=mode, **{**_BLACKWELL, "index_topk": 3, **settings})


@pytest.mark.parametrize("mode", ["decode", "target_verify"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.16", "0.5.17", "0.5.19", "0.5.23"])
def test_a_newer_device_sees_what_scores_select(workers: Workers, version: str, mode: Mode) -> None:
    target = "sglang-nsa-verify" if mode == "target_verify" else "sglang-nsa"
    case = on_blackwell((5, 66, 7, 150), (130, 6, 7), mode=mode)
    assert workers.findings(version, case, target) == ()


@pytest.mark.parametrize("target", ["sglang-nsa-verify", "sglang-nsa-glue-verify"])
def test_generated_verifies_on_a_newer_device_are_silent(workers: Workers, target: str) -> None:
    drawn = generated(
        target, lambda config: config.compute_capability == 10, blocks=4, each=20, enough=6
    )
    assert len(drawn) >= 6
    for case in drawn:
        assert workers.findings("0.5.23", case, target) == ()


_LONG = on_blackwell((5, 66, 7, 150), (300, 6, 7), (150, 3, 257, 66), mode="target_verify",
                     max_context_len=448)  # fmt: skip
"""Keys of the longest rows are scored in two parts."""


def test_long_rows_on_a_newer_device_are_silent(workers: Workers) -> None:
    assert workers.findings("0.5.23", _LONG, "sglang-nsa-verify") == ()


@pytest.mark.parametrize(
    ("mutant", "found"),
    [
        ("lengths_in_one_column", ("survival", "")),
        ("lengths_without_the_drafts", ("reference", "attention")),
        ("lengths_of_the_first_token", ("reference", "attention")),
        ("pages_of_the_first_rows", ("reference", "attention")),
        ("plan_of_the_replay_before", ("contract", "schedule_meta")),
        ("plan_of_single_tokens", ("handover", "get_paged_mqa_logits_metadata.context_lens")),
    ],
)
def test_an_indexer_that_scores_tokens_of_a_row_wrongly_is_found(
    workers: Workers, mutant: str, found: tuple[str, str]
) -> None:
    findings = workers.findings("0.5.23", _LONG, f"{_MUTANTS}{mutant}")
    assert found in {(each.oracle, each.buffer) for each in findings}


@pytest.mark.parametrize("version", ["0.5.13", "0.5.23"])
def test_queries_with_weights_of_other_rows_are_found(workers: Workers, version: str) -> None:
    findings = workers.findings(version, _LONG, f"{_MUTANTS}weights_of_other_rows")
    assert ("reference", "attention") in {(each.oracle, each.buffer) for each in findings}


def test_a_newer_device_has_no_flash_attention_3() -> None:
    with pytest.raises(InvalidCase, match="has no FlashAttention 3"):
        on_blackwell((5,), mode="decode", sparse_kernel="fa3")


_ROWS: dict[str, Any] = {"index_topk": 64, "index_logits_bytes": 1}
_V4 = paged_case(batches=((400, 300), (260,), (511, 402)), **_ROWS)
_APART = paged_case(
    batches=((1200, 300), (1100, 300)),
    **_ROWS,
    max_context_len=1280,
    kv_pool_pages=24,
)
"""Keys of the first row are scored in two parts, those of the second at once."""
_UNEVEN = paged_case(
    batches=((600, 300, 460), (601, 301, 461)),
    max_context_len=768,
    capture_bs=(3,),
    kv_pool_pages=24,
    index_topk=64,
    index_logits_bytes=2048,
)
"""Two rows are scored at once, then one."""
_V41 = paged_case("c1", ((264, 400), (265,), (300, 402)), **_ROWS)


@pytest.mark.parametrize(
    ("target", "case"),
    [
        ("sglang-dsv4", _V4),
        ("sglang-dsv4", _APART),
        ("sglang-dsv4", _UNEVEN),
        ("sglang-dsv4-verify", verified(**_ROWS)),
        ("sglang-dsv41", _V41),
        ("sglang-dsv41-verify", verified("c2", **_ROWS)),
    ],
)
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22", "0.5.23"])
def test_rows_that_are_scored_one_by_one_select_the_same(
    workers: Workers, version: str, target: str, case: Case
) -> None:
    assert workers.findings(version, case, target) == ()


def test_a_release_that_scores_all_rows_at_once_is_not_run_with_little_memory(
    workers: Workers,
) -> None:
    assert "index_logits_bytes must be 0" in workers.skipped("0.5.20", _V4, "sglang-dsv4")


@pytest.mark.parametrize(
    "target", ["sglang-dsv4", "sglang-dsv4-verify", "sglang-dsv41", "sglang-dsv41-verify"]
)
def test_generated_cases_with_little_memory_are_silent(workers: Workers, target: str) -> None:
    drawn = generated(
        target,
        lambda config: config.index_logits_bytes > 0 and config.dp_size == 1,
        blocks=8,
        each=20,
        enough=6,
    )
    assert len(drawn) >= 6
    for case in drawn:
        assert workers.findings("0.5.23", case, target) == ()


@pytest.mark.parametrize(
    ("mutant", "case"),
    [
        ("pages_of_all_rows", _V41),
        ("plan_of_the_first_chunk", _UNEVEN),
        ("schedule_of_the_first_chunk", _APART),
        ("chunks_without_their_last_row", _V4),
        ("pages_of_the_first_chunk", _V4),
    ],
)
def test_a_chunk_that_takes_what_is_of_other_rows_is_found(
    workers: Workers, mutant: str, case: Case
) -> None:
    findings = workers.findings("0.5.23", case, f"{_MUTANTS}{mutant}")
    assert findings


@pytest.mark.parametrize("mutant", ["v4_weights_of_other_rows", "v4_weights_of_other_heads"])
@pytest.mark.parametrize("version", ["0.5.13", "0.5.19", "0.5.23"])
def test_queries_of_v4_with_weights_of_other_rows_or_heads_are_found(
    workers: Workers, version: str, mutant: str
) -> None:
    case = paged_case(batches=((400, 300), (402, 511)), index_topk=64)
    findings = workers.findings(version, case, f"{_MUTANTS}{mutant}")
    assert ("reference", "attention") in {(each.oracle, each.buffer) for each in findings}


def test_keys_without_an_indexer_need_no_memory_for_scores() -> None:
    with pytest.raises(InvalidCase, match="needs kv_compression among c4, c1, c2"):
        paged_case("c128", index_logits_bytes=1)


_WIDE = on_blackwell(
    tuple(3 + row % 40 for row in range(40)),
    mode="target_verify",
    capture_bs=(40,),
    max_context_len=64,
    req_pool_size=40,
)
"""More rows than the model of the scores has multiprocessors."""


def test_more_rows_than_multiprocessors_are_scored_in_parts(workers: Workers) -> None:
    assert workers.findings("0.5.23", _WIDE, "sglang-nsa-verify") == ()


def test_a_part_of_many_rows_that_takes_pages_of_others_is_found(workers: Workers) -> None:
    mutant = f"{_MUTANTS}pages_of_the_first_multiprocessors"
    assert "reference" in {each.oracle for each in workers.findings("0.5.23", _WIDE, mutant)}
