"""DeepSeek V4.1 of released sglang: layers with a key of each token or of each two."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from fuzzgraph.case import Case
from fuzzgraph.targets import open_target
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_dsv4 import paged_case
from tests.targets.sglang.test_dsv4_verify import verified

_LONG = ((264, 400), (265,), (300, 402))


def decoded(kind: str, **settings: Any) -> Case:
    return paged_case(kind, _LONG, **settings)


@pytest.mark.sglang
@pytest.mark.parametrize("kind", ["c1", "c2"])
@pytest.mark.parametrize("index_topk", [0, 64])
def test_a_layer_attends_to_its_window_and_the_best_of_its_keys(
    workers: Workers, kind: str, index_topk: int
) -> None:
    case = decoded(kind, index_topk=index_topk)
    assert workers.findings("0.5.23", case, "sglang-dsv41") == ()


@pytest.mark.sglang
@pytest.mark.parametrize("kind", ["c1", "c2"])
@pytest.mark.parametrize("index_topk", [0, 64])
def test_drafts_attend_to_their_windows_and_the_best_of_their_keys(
    workers: Workers, kind: str, index_topk: int
) -> None:
    case = verified(kind, index_topk=index_topk)
    assert workers.findings("0.5.23", case, "sglang-dsv41-verify") == ()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.21", "0.5.22"])
@pytest.mark.parametrize("kind", ["c1", "c2"])
def test_layers_of_every_release_attend_to_the_best_of_their_keys(
    workers: Workers, version: str, kind: str
) -> None:
    assert workers.findings(version, decoded(kind, index_topk=64), "sglang-dsv41") == ()
    assert workers.findings(version, verified(kind, index_topk=64), "sglang-dsv41-verify") == ()


def test_a_layer_whose_keys_do_not_tell_tokens_apart_is_not_driven() -> None:
    config = replace(paged_case("c1").config, head_dim=2, v_head_dim=2, num_q_heads=4)
    assert "two tokens have one key" in str(open_target("sglang-dsv41").unsupported(config))


def test_rows_of_one_token_and_layers_of_deepseek_v4_are_not_driven() -> None:
    assert open_target("sglang-dsv41").capabilities.min_seq_len == 2
    config = paged_case("c4").config
    assert "kv_compression" in str(open_target("sglang-dsv41").unsupported(config))


_MUTANTS = "tests.targets.sglang.low_ratio_mutants"


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "kind", "found"),
    [
        ("lengths_of_the_step_before", "c1", "attention"),
        ("lengths_of_the_step_before", "c2", "attention"),
        ("index_lengths_of_the_other_ratio", "c2", "attention"),
        ("another_ratio_in_the_pages", "c2", "attention"),
        ("slots_of_the_next_block", "c1", "attention"),
        ("slots_of_the_next_block", "c2", "attention"),
        ("index_keys_by_slots_of_tokens", "c2", "compressor_strays"),
        ("keys_of_the_padding", "c1", "attention"),
        ("requests_of_other_rows", "c2", "attention"),
    ],
)
def test_a_decode_with_one_line_changed_is_found(
    workers: Workers, mutant: str, kind: str, found: str
) -> None:
    case = decoded(kind, index_topk=64)
    findings = workers.findings("0.5.23", case, f"{_MUTANTS}:{mutant}")
    assert found in {each.buffer for each in findings if each.oracle == "reference"}


@pytest.mark.sglang
@pytest.mark.parametrize(
    ("mutant", "kind", "found"),
    [
        ("lengths_of_the_first_drafts", "c1", "attention"),
        ("pages_of_the_first_rows", "c1", "attention"),
        ("pages_of_the_first_rows", "c2", "attention"),
        ("requests_in_another_order", "c2", "compressor_states"),
        ("drafts_of_the_ring", "c2", "attention"),
    ],
)
def test_a_verify_with_one_line_changed_is_found(
    workers: Workers, mutant: str, kind: str, found: str
) -> None:
    case = verified(kind, index_topk=64)
    findings = workers.findings("0.5.23", case, f"{_MUTANTS}:{mutant}")
    assert found in {each.buffer for each in findings if each.oracle == "reference"}


@pytest.mark.sglang
@pytest.mark.parametrize("kind", ["c1", "c2"])
def test_lengths_of_drafts_that_do_not_come_by_requests_end_a_capture(
    workers: Workers, kind: str
) -> None:
    mutant = f"{_MUTANTS}:lengths_without_a_dimension"
    (finding,) = workers.findings("0.5.23", verified(kind), mutant)
    assert finding.oracle == "survival"
    assert "1 query rows do not group by 4" in finding.message
