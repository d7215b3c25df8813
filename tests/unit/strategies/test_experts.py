"""Experts and their ranks: in drawn cases, in smaller ones, and where they contradict."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.strategies.minimise import minimise

CAN = Capabilities(experts=True, max_experts_per_token=3, max_ep_size=4)


def drawn(can: Capabilities = CAN, count: int = 300) -> list[Case]:
    found: list[Case] = []
    draw(cases(can, DEFAULT.at(3)), 3, count, found.append)
    return found


def case_of(**settings: Any) -> Case:
    step = ReplayStep(rows=(BatchRow(request=0, seq_len=3),))
    config = EngineConfig(**{"num_experts": 8, **settings})
    return Case(schema_version=1, config=config, steps=(step,))


def test_every_drawn_case_is_coherent() -> None:
    for case in drawn():
        assert case.config.num_experts
        validate(case)


def test_each_number_of_experts_and_ranks_comes() -> None:
    configs = [case.config for case in drawn()]
    for name, values in (
        ("num_experts", {4, 8, 64}),
        ("experts_per_token", {1, 2, 3}),
        ("ep_size", {1, 2, 4}),
        ("ep_rank", {0, 1}),
    ):
        came = Counter(getattr(config, name) for config in configs)
        assert all(came[value] > 10 for value in values), (name, came)


def test_a_bound_of_a_test_holds() -> None:
    pins = (("ep_size", (1,)), ("num_experts", (4,)))
    found = [swarm_config(CAN, DEFAULT, number, pins=pins) for number in range(50)]
    assert {(config.ep_size, config.num_experts) for config in found} == {(1, 4)}


BESIDE = CAN.replace(
    max_dp_size=8, max_ep_size=8, expert_exchanges=("scatterv", "scatter", "reduce")
)


def test_a_target_that_always_has_data_parallel_ranks_has_them_in_every_config() -> None:
    configs = [case.config for case in drawn(BESIDE.replace(data_ranks_only=True))]
    assert {config.dp_size for config in configs} == {2, 4, 8}


def test_data_parallel_ranks_share_the_experts_out() -> None:
    configs = [case.config for case in drawn(BESIDE)]
    beside = [config for config in configs if config.dp_size > 1]
    assert len(beside) > 60
    for config in beside:
        assert (config.ep_size, config.ep_rank) == (config.dp_size, config.dp_rank)
    assert {config.expert_exchange for config in beside} == set(BESIDE.expert_exchanges)
    assert {config.ep_size for config in configs if config.dp_size == 1} == {1, 2, 4}


def test_ranks_of_decodes_have_a_custom_all_reduce_that_takes_all_tokens_or_few() -> None:
    can = BESIDE.replace(custom_all_reduce=True)
    beside = [case.config for case in drawn(can) if case.config.dp_size > 1]
    assert {config.all_reduce_kib for config in beside} == {0, 1, 1 << 14}
    alone = [case.config for case in drawn(can) if case.config.dp_size == 1]
    assert {config.all_reduce_kib for config in alone} == {0}


QUANTISED = BESIDE.replace(
    dtypes=("float32", "float16"),
    expert_quantisations=("none", "fp8_blocks", "fp8_dynamic", "int8_channels"),
)


def quantised_experts(can: Capabilities = QUANTISED) -> list[EngineConfig]:
    found = [swarm_config(can, DEFAULT, number) for number in range(400)]
    return [config for config in found if config.expert_quantisation != "none"]


def test_experts_are_quantised_where_servers_have_it() -> None:
    found = quantised_experts()
    came = Counter(config.expert_quantisation for config in found)
    assert all(came[kind] > 5 for kind in QUANTISED.expert_quantisations[1:]), came
    assert {config.dtype for config in found} == {"float16"}
    assert {config.dp_size > 1 for config in found} == {True, False}
    assert not quantised_experts(QUANTISED.replace(expert_activations=("clamped_swiglu",)))


def test_a_scale_of_all_tokens_is_drawn_on_one_rank_and_on_several() -> None:
    found = [each for each in quantised_experts() if each.expert_quantisation == "fp8_dynamic"]
    assert {config.ep_size > 1 for config in found} == {True, False}


SHARED = BESIDE.replace(
    shared_experts=("none", "apart", "fused"), expert_quantisations=("none", "fp8_blocks"),
    dtypes=("float16",),
)  # fmt: skip


def test_each_way_to_have_a_shared_expert_comes_where_a_model_has_it() -> None:
    configs = [swarm_config(SHARED, DEFAULT, number) for number in range(300)]
    came: Counter[tuple[str, bool]] = Counter(
        (config.shared_experts, config.ep_size > 1) for config in configs
    )
    kinds = ("none", "apart", "fused")
    assert all(came[kind, several] > 10 for kind in kinds for several in (False, True)), came
    assert {each.expert_quantisation for each in configs} == {"none", "fp8_blocks"}


def test_groups_of_experts_come_where_a_router_takes_sigmoids() -> None:
    grouped = BESIDE.replace(max_expert_groups=4, expert_scorings=("sigmoid",))
    configs = [swarm_config(grouped, DEFAULT, number) for number in range(200)]
    came = Counter(config.expert_groups for config in configs)
    assert set(came) == {1, 2, 4} and min(came.values()) > 20, came
    for config in configs:
        validate(case_of(**{name: getattr(config, name) for name in (
            "num_experts", "experts_per_token", "expert_groups", "expert_scoring",
        )}))  # fmt: skip


def test_copies_of_experts_come_on_one_data_parallel_rank() -> None:
    configs = [
        swarm_config(BESIDE.replace(expert_copies=True), DEFAULT, number) for number in range(200)
    ]
    copied = [config for config in configs if config.expert_copies]
    assert {(config.dp_size, config.ep_size > 1) for config in copied} == {(1, False), (1, True)}
    assert all(config.expert_copies % config.ep_size == 0 for config in copied)


def test_experts_that_a_test_has_bounded_stay_on_one_rank() -> None:
    pins = (("num_experts", (9,)),)
    found = [swarm_config(BESIDE, DEFAULT, number, pins=pins) for number in range(50)]
    assert {(config.dp_size, config.num_experts) for config in found} == {(1, 9)}


def test_a_target_without_them_gets_none() -> None:
    for case in drawn(Capabilities(), 100):
        assert (case.config.num_experts, case.config.ep_size) == (0, 1)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"num_experts": 2, "experts_per_token": 3}, "must be at most num_experts=2"),
        ({"num_experts": 0, "experts_per_token": 2}, "must be at most num_experts=0"),
        ({"ep_size": 3}, "must share out num_experts=8 evenly"),
        ({"num_experts": 0, "ep_size": 2}, "must share out num_experts=0 evenly"),
        ({"ep_size": 2, "ep_rank": 2}, "must be below ep_size=2"),
        ({"ep_size": 2, "attn_tp_size": 2}, "those of attn_tp_size have their own"),
        ({"dp_size": 2}, "data-parallel ranks share out the experts"),
        ({"dp_size": 4, "ep_size": 2}, "got ep_rank=0, dp_size=4"),
        ({"dp_size": 2, "ep_size": 2, "ep_rank": 1}, "got ep_rank=1, dp_size=2, dp_rank=0"),
        ({"expert_exchange": "reduce"}, "is of data-parallel ranks with experts"),
        ({"all_reduce_kib": 1}, "needs several data-parallel ranks and modes"),
        ({"expert_copies": 9}, "must be at most num_experts=8"),
        ({"expert_copies": 3, "ep_size": 2}, "a multiple of ep_size=2"),
        ({"expert_copies": 2, "ep_size": 2, "dp_size": 2}, "on one data-parallel rank"),
        ({"expert_groups": 2}, "chosen by sigmoids; got experts_per_token=1"),
        ({"expert_groups": 3, "expert_scoring": "sigmoid"}, "must be even"),
        (
            {"expert_groups": 2, "num_experts": 2, "expert_scoring": "sigmoid"},
            "share out num_experts=2 evenly, two or more",
        ),
        ({"num_experts": 0, "shared_experts": "fused"}, "needs experts without biases"),
        (
            {"shared_experts": "apart", "expert_activation": "clamped_swiglu"},
            "got num_experts=8, expert_activation='clamped_swiglu'",
        ),
        (
            {"num_experts": 96, "shared_experts": "apart", "ep_size": 32},
            "ep_size=32 ranks must share out evenly",
        ),
        (
            {"num_experts": 2, "experts_per_token": 2, "shared_experts": "fused"},
            "leave some experts out; got experts_per_token=2 of num_experts=2",
        ),
    ],
)
def test_configs_that_contradict_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCase, match=said):
        validate(case_of(**settings))


def test_shrinking_leaves_the_ranks_and_experts_that_a_failure_needs() -> None:
    case = case_of(num_experts=64, experts_per_token=3, ep_size=4, ep_rank=3)

    def last_of_several(candidate: Case) -> bool:
        config = candidate.config
        return config.ep_size > 1 and config.ep_rank == config.ep_size - 1

    smallest = minimise(case, last_of_several).config
    assert (smallest.ep_size, smallest.ep_rank, smallest.experts_per_token) == (2, 1, 1)
    assert smallest.num_experts == 2
