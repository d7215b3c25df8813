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
    V2,
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


_GIVES = ("computes", "lora_experts")
_NO_GRAPH = "bfloat16, device(type='cpu'), 0)]"
"""The last part of the name of memory that batches without a graph compute in."""
_TWO = _with_experts(MIXED)
_SHARED = _with_experts(MIXED, experts_shared_outer_loras=True)


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
        ("sglang-lora", {"num_experts": 4}, "num_experts=4 is not driven"),
    ],
)
def test_configs_that_the_targets_do_not_have_are_refused(
    target: str, settings: dict[str, Any], said: str
) -> None:
    assert said in str(open_target(target).unsupported(EngineConfig(max_loras=1, **settings)))
