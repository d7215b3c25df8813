"""Experts in FP8 and INT8 on released sglang: each token's scales, each expert's, and no others."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.case import Case
from fuzzgraph.errors import InvalidCase
from tests.targets.sglang.hybrid_cases import step, verify
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_moe import _case, found
from tests.targets.sglang.test_moe_ranks import beside_ranks

NEWEST = "0.5.23"
KINDS = ("fp8_blocks", "fp8_channels", "fp8_tensors", "int8_channels")
by_kind = pytest.mark.parametrize("kind", KINDS)


def quantised(kind: str, **settings: Any) -> Case:
    """Rows that leave, in graphs that are padded for those that stay."""
    steps = (
        step((0, 5), (1, 6), (2, 7), (3, 8)),
        step((0, 6), (1, 7), (2, 8), finish=(3,)),
        step((1, 8), finish=(0, 2)),
    )
    return _case(*steps, expert_quantisation=kind, **settings)


@pytest.mark.sglang
@pytest.mark.slow
@by_kind
@pytest.mark.parametrize("version", ["0.5.19", "0.5.21", NEWEST])
def test_each_token_has_its_own_quantised_experts(
    workers: Workers, version: str, kind: str
) -> None:
    for settings in ({}, {"ep_size": 2, "ep_rank": 1}):
        assert found(workers, version, quantised(kind, **settings), "sglang-moe") == set()
    of_64 = {"num_experts": 64, "experts_per_token": 3, "ep_size": 4, "ep_rank": 3}
    assert found(workers, version, quantised(kind, **of_64), "sglang-moe") == set()


@pytest.mark.sglang
@pytest.mark.slow
@by_kind
def test_each_draft_has_its_own_quantised_experts(workers: Workers, kind: str) -> None:
    steps = (
        verify((0, 5), (1, 6), (2, 7), (3, 8)),
        verify((0, 8), (1, 9), (2, 10), finish=(3,)),
    )
    of = _case(*steps, draft_tokens=3, ep_size=2, expert_quantisation=kind)
    assert found(workers, NEWEST, of, "sglang-moe-verify") == set()


@pytest.mark.sglang
@pytest.mark.slow
@by_kind
@pytest.mark.parametrize("target", ["sglang-moe", "sglang-moe-verify"])
def test_tokens_of_all_ranks_have_quantised_experts(
    workers: Workers, kind: str, target: str
) -> None:
    of = beside_ranks(target, expert_quantisation=kind)
    assert found(workers, NEWEST, of, target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.19", NEWEST])
def test_a_scale_of_all_tokens_comes_from_undefined_rows_on_several_ranks(
    workers: Workers, version: str
) -> None:
    """See reports/findings/sglang-moe-dynamic-scale.md."""
    assert found(workers, version, quantised("fp8_dynamic"), "sglang-moe") == set()
    rows = step((0, 5), (1, 6))
    of = _case(rows, capture_bs=(2,), ep_size=2, expert_quantisation="fp8_dynamic")
    assert ("reads", "experts") in found(workers, version, of, "sglang-moe")


@pytest.mark.sglang
def test_no_server_of_a_release_without_the_kernels_is_meant(workers: Workers) -> None:
    config = quantised("fp8_blocks").config
    assert "later releases" in workers.unserved("0.5.13", config, "sglang-moe")
    assert workers.unserved(NEWEST, config, "sglang-moe") == ""


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "kind"),
    [
        ("int8_taken_for_fp8", "int8_channels"),
        ("first_scale_of_inputs_for_both", "fp8_tensors"),
        ("first_scale_of_weights_for_both", "fp8_tensors"),
        ("blocks_forgotten", "fp8_blocks"),
        ("first_group_of_inputs", "fp8_blocks"),
        ("first_group_of_weights", "fp8_blocks"),
        ("block_of_another_expert", "fp8_blocks"),
        ("first_block_of_rows", "fp8_blocks"),
        ("scale_of_another_token", "fp8_channels"),
        ("scale_of_another_token", "int8_channels"),
        ("scale_of_the_first_expert", "fp8_tensors"),
        ("unscaled", "fp8_tensors"),
        ("last_columns_left_out", "fp8_blocks"),
        ("strides_of_blocks_swapped", "fp8_blocks"),
        ("smallest_scale_of_inputs", "fp8_tensors"),
        ("not_quantised_again", "fp8_tensors"),
        ("scales_of_the_other_product", "int8_channels"),
        ("rows_by_matrix", "fp8_channels"),
        ("int8_by_128", "int8_channels"),
        ("int8_of_one_row", "int8_channels"),
    ],
)
def test_a_planted_bug_is_found(workers: Workers, planted: str, kind: str) -> None:
    mutants = f"tests.targets.sglang.quantised_moe_mutants:{planted}"
    seen = found(workers, NEWEST, quantised(kind), mutants)
    assert {broken for broken, _ in seen} & {"computes", "reads", "survives"}, seen


@pytest.mark.parametrize(
    "settings",
    [{"num_experts": 0, "experts_per_token": 1}, {"dtype": "float32"}]
    + [{"expert_activation": "clamped_swiglu"}, {"max_loras": 1}],
)
def test_what_no_server_has_beside_quantised_experts_is_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidCase, match="expert_quantisation"):
        quantised("fp8_blocks", **settings)
