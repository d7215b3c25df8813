"""Experts with LoRA adapters beside attention on released sglang: decodes and verifies."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from fuzzgraph.case import Case, EngineConfig, validate
from fuzzgraph.targets import open_target
from tests.targets.sglang.hybrid_cases import found
from tests.targets.sglang.released import Workers
from tests.targets.sglang.test_lora import (
    ALONE,
    FEWER_SEGMENTS,
    MIXED,
    REPLACED,
    TARGETS,
    V2,
    VERIFIES,
    _case,
    _step,
    _verified,
)

NEWEST = "0.5.23"


def _with_experts(of: Case, **settings: Any) -> Case:
    """The same where adapters have weights of experts too."""
    given = {"num_experts": 8, "experts_per_token": 2, "dtype": "bfloat16", **settings}
    return validate(msgspec.structs.replace(of, config=msgspec.structs.replace(of.config, **given)))


# Adapters of all experts, of every other one, of none, one in the place of another.
TAKE_TURNS = _case(
    _step((0, 5, 1), (1, 6, 0)),
    _step((2, 5, 2), (1, 7, 0), finish=(0,)),
    _step((3, 5, 3), (1, 8, 0), finish=(2,)),
    max_loras=1,
)
# A step without adapters has a graph of its own.
# Between two graphs runs a batch above them, which needs more memory.
ABOVE = _case(
    _step((0, 5, 1), (1, 6, 2)),
    _step((0, 6, 1), (1, 7, 2), (2, 5, 0), (3, 5, 1), (4, 5, 2)),
    _step((0, 7, 1), (1, 8, 2), finish=(2, 3, 4)),
    capture_bs=(2,),
    req_pool_size=5,
)
NO_ADAPTER = _case(_step((0, 5, 1), (1, 6, 2)), _step((2, 6, 0), (3, 5, 0), finish=(0, 1)))
LAYOUTS: tuple[dict[str, Any], ...] = ({}, {"experts_shared_outer_loras": True})
by_layout = pytest.mark.parametrize("layout", LAYOUTS, ids=["per expert", "shared outer"])


@pytest.mark.sglang
def test_more_tokens_than_one_kernel_finishes_are_right(workers: Workers) -> None:
    """Of more than 64 tokens another kernel adds base and adapter up (base_gemm_provider/base.py,
    `finalize`)."""
    rows = 66
    of = _case(
        _step(*((row, 5, row % 3) for row in range(rows))),
        capture_bs=(rows,), req_pool_size=rows, kv_pool_pages=rows * 16 + 2,
    )  # fmt: skip
    assert found(workers, NEWEST, _with_experts(of), V2) == set()


@pytest.mark.sglang
@pytest.mark.slow
@by_layout
@pytest.mark.parametrize(
    "of",
    [MIXED, REPLACED, FEWER_SEGMENTS, ALONE, TAKE_TURNS, ABOVE, NO_ADAPTER],
    ids=["mixed", "replaced", "fewer", "alone", "turns", "above", "none"],
)
def test_each_token_has_its_adapter_of_each_of_its_experts(
    workers: Workers, of: Case, layout: dict[str, Any]
) -> None:
    assert found(workers, NEWEST, _with_experts(of, **layout), V2) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    "settings",
    [{"num_experts": 4, "experts_per_token": 1}, {"num_experts": 16, "experts_per_token": 3}],
    ids=["one of four", "three of sixteen"],
)
def test_so_it_has_of_any_number(workers: Workers, settings: dict[str, Any]) -> None:
    assert found(workers, NEWEST, _with_experts(MIXED, **settings), V2) == set()


@pytest.mark.sglang
@pytest.mark.slow
@by_layout
def test_so_has_each_draft(workers: Workers, layout: dict[str, Any]) -> None:
    of = _with_experts(_verified(MIXED), **layout)
    assert found(workers, NEWEST, of, f"{V2}-verify") == set()


# Older kernels, which take float16: all adapters at once, or one after another.
OLDER = {"dtype": "float16"}
VIRTUAL = {**OLDER, "lora_use_virtual_experts": True}


@pytest.mark.sglang
@pytest.mark.slow
@by_layout
@pytest.mark.parametrize(
    "of",
    [MIXED, TAKE_TURNS, ABOVE],
    ids=["mixed", "turns", "above"],
)
@pytest.mark.parametrize(
    ("version", "target"),
    [
        ("0.5.16", TARGETS[0]),
        ("0.5.19", TARGETS[0]),
        ("0.5.21", TARGETS[1]),
        (NEWEST, TARGETS[0]),
        (NEWEST, TARGETS[1]),
    ],
)
def test_older_kernels_apply_one_adapter_after_another(
    workers: Workers, version: str, target: str, of: Case, layout: dict[str, Any]
) -> None:
    assert found(workers, version, _with_experts(of, **OLDER, **layout), target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@by_layout
@pytest.mark.parametrize("of", [MIXED, ALONE, ABOVE], ids=["mixed", "alone", "above"])
@pytest.mark.parametrize("target", TARGETS)
def test_older_kernels_take_all_adapters_for_virtual_experts(
    workers: Workers, target: str, of: Case, layout: dict[str, Any]
) -> None:
    assert found(workers, NEWEST, _with_experts(of, **VIRTUAL, **layout), target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("settings", [OLDER, VIRTUAL], ids=["one by one", "virtual"])
@pytest.mark.parametrize("target", VERIFIES)
def test_so_they_do_for_each_draft(workers: Workers, target: str, settings: dict[str, Any]) -> None:
    assert found(workers, NEWEST, _with_experts(_verified(MIXED), **settings), target) == set()


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize("version", ["0.5.16", "0.5.19", "0.5.22"])
def test_virtual_experts_have_the_gates_a_for_up_until_0_5_23(
    workers: Workers, version: str
) -> None:
    """See reports/findings/sglang-lora-virtual-experts.md."""
    assert _GIVES in found(workers, version, _with_experts(MIXED, **VIRTUAL), TARGETS[0])


@pytest.mark.sglang
@pytest.mark.slow
def test_releases_before_0_5_16_do_not_run_them(workers: Workers) -> None:
    of = _with_experts(MIXED, **OLDER)
    assert workers.skipped("0.5.13", of, TARGETS[0]) == "num_experts=8 is not driven"


_GIVES = ("computes", "lora_experts")
_NO_GRAPH = "bfloat16, device(type='cpu'), 0)]"
"""The last part of the name of memory that batches without a graph compute in."""
_TWO = _with_experts(MIXED)
_SHARED = _with_experts(MIXED, experts_shared_outer_loras=True)
_AT_ONCE = _with_experts(MIXED, **VIRTUAL)
_SHARED_AT_ONCE = _with_experts(MIXED, experts_shared_outer_loras=True, **VIRTUAL)
_IN_TURN = _with_experts(MIXED, **OLDER)


@pytest.mark.sglang
@pytest.mark.slow
@pytest.mark.parametrize(
    ("planted", "of", "named"),
    [
        ("raw_without_groups", _TWO, _GIVES),
        ("sorted_without_groups", _TWO, _GIVES),
        ("shared_with_groups", _SHARED, _GIVES),
        ("slots_side_by_side", _TWO, _GIVES),
        ("slot_of_a_pair", _TWO, ("reads", "token_slots")),
        ("one_bucket_on", _TWO, _GIVES),
        ("blocks_overlap", _TWO, _GIVES),
        ("counts_not_cleared", _TWO, _GIVES),
        ("input_of_the_token", _TWO, _GIVES),
        ("first_plane", _TWO, _GIVES),
        ("without_adapter_not_cleared", _TWO, _GIVES),
        ("gate_for_up", _TWO, _GIVES),
        ("delta_behind_the_activation", _TWO, _GIVES),
        ("weights_reversed", _TWO, _GIVES),
        ("first_pair_twice", _TWO, _GIVES),
        ("shared_b_of_the_first_slot", _SHARED, _GIVES),
        ("shared_sum_not_weighted", _SHARED, _GIVES),
        ("rows_reversed", _TWO, _GIVES),
        ("slots_of_the_capture", _TWO, _GIVES),
        (
            "memory_of_no_graph",
            _with_experts(ABOVE),
            ("reads", _NO_GRAPH),
        ),
        ("one_pair_less", _TWO, ("survives", "")),
        ("not_scaled", _TWO, _GIVES),
        ("shared_not_scaled", _SHARED, _GIVES),
        ("up_behind_its_rank", _TWO, _GIVES),
        ("experts_one_on", _TWO, _GIVES),
        ("others_not_cleared", _with_experts(TAKE_TURNS), _GIVES),
        ("virtual_side_by_side", _AT_ONCE, _GIVES),
        ("virtual_slot_before", _AT_ONCE, _GIVES),
        ("routes_of_another_product", _SHARED_AT_ONCE, _GIVES),
        ("gates_a_for_up", _AT_ONCE, _GIVES),
        ("virtual_not_weighted", _AT_ONCE, _GIVES),
        ("one_gates_a_for_up", _IN_TURN, _GIVES),
        ("one_not_weighted", _IN_TURN, _GIVES),
        ("weights_of_the_first_slot", _IN_TURN, _GIVES),
        ("weights_of_the_first_expert", _IN_TURN, _GIVES),
        ("places_of_the_slot_before", _IN_TURN, _GIVES),
        ("merged_segments", _IN_TURN, _GIVES),
        ("first_blocks_alone", _IN_TURN, _GIVES),
        ("nothing_added_up", _IN_TURN, _GIVES),
        ("experts_of_the_first_slot", _IN_TURN, _GIVES),
    ],
)
def test_a_planted_bug_is_found(
    workers: Workers, planted: str, of: Case, named: tuple[str, str]
) -> None:
    assert named in found(
        workers, NEWEST, of, f"tests.targets.sglang.lora_expert_mutants:{planted}"
    )


@pytest.mark.parametrize(
    ("target", "settings", "said"),
    [
        (V2, {"num_experts": 4}, "dtype='float32' with adapters of experts is not driven"),
        (TARGETS[0], {"num_experts": 4}, "dtype='float32' with adapters of experts is not driven"),
        (
            TARGETS[0],
            {"num_experts": 4, "dtype": "float16", "dp_size": 2, "ep_size": 2},
            "num_experts beside data-parallel ranks is not driven",
        ),
        (
            V2,
            {"num_experts": 4, "dtype": "bfloat16", "lora_use_virtual_experts": True},
            "lora_use_virtual_experts=True is not driven",
        ),
    ],
)
def test_configs_that_the_targets_do_not_have_are_refused(
    target: str, settings: dict[str, Any], said: str
) -> None:
    assert said in str(open_target(target).unsupported(EngineConfig(max_loras=1, **settings)))
