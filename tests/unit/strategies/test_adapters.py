"""LoRA adapters of requests: in drawn cases, in smaller ones, and where they contradict."""

from __future__ import annotations

from itertools import pairwise
from typing import Any

import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.case.adapters import adapters_of, most_adapters
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.strategies.minimise import minimise
from fuzzgraph.strategies.repair import with_config
from fuzzgraph.targets import open_target

CAN = Capabilities(loras=True, preemption=True)


def drawn(can: Capabilities = CAN, count: int = 300) -> list[Case]:
    found: list[Case] = []
    draw(cases(can, DEFAULT.at(3)), 3, count, found.append)
    return found


def test_batches_mix_adapters_and_requests_without_one() -> None:
    steps = [step for case in drawn() for step in case.steps]
    assert sum(len({row.adapter for row in step.rows}) > 2 for step in steps) > 30
    assert sum({row.adapter for row in step.rows} >= {0, 1} for step in steps) > 30


def test_more_adapters_come_than_one_batch_may_have() -> None:
    replaced = [
        case
        for case in drawn()
        if len(frozenset().union(*map(adapters_of, case.steps))) > case.config.max_loras
    ]
    assert len(replaced) > 20


def test_a_request_has_one_adapter_wherever_it_comes_back() -> None:
    for case in drawn():
        given: dict[int, int] = {}
        for row in (row for step in case.steps for row in step.rows):
            assert given.setdefault(row.request, row.adapter) == row.adapter


def test_every_drawn_case_is_coherent() -> None:
    for case in drawn():
        assert 1 <= case.config.max_loras <= 3
        validate(case)


def test_cases_have_adapters_of_experts_where_a_target_may() -> None:
    can = open_target("sglang-lora").capabilities
    having: list[EngineConfig] = []
    for block in range(8):  # the cases of one draw have few configs
        found: list[Case] = []
        draw(cases(can, DEFAULT.at(block)), block, 40, found.append)
        having += [case.config for case in found if case.config.num_experts]
    assert len(having) > 80
    assert {config.dtype for config in having} == {can.lora_experts_dtype}
    for name in ("experts_shared_outer_loras", "lora_use_virtual_experts"):
        assert {getattr(config, name) for config in having} == {True, False}
    assert {config.experts_per_token for config in having} == {1, 2, 3}


def test_a_target_without_them_gets_none() -> None:
    for case in drawn(CAN.replace(loras=False), 100):
        assert not case.config.max_loras
        assert not any(map(adapters_of, case.steps))


def test_batches_name_the_adapter_of_each_row_in_any_order() -> None:
    batch = plan(case_of(((0, 1), (1, 0), (2, 2))))[0]
    assert batch.adapters.tolist() == [1, 0, 2]
    turned = [2, 0, 1]
    assert batch.with_rows(batch.requests[turned]).adapters.tolist() == [2, 1, 0]


def case_of(*steps: tuple[tuple[int, int], ...], **settings: Any) -> Case:
    """Each step has rows of (request, adapter)."""
    made = [
        ReplayStep(rows=tuple(BatchRow(request=name, adapter=own) for name, own in rows))
        for rows in steps
    ]
    config = EngineConfig(**{"max_loras": 2, **settings})
    return Case(schema_version=1, config=config, steps=tuple(made))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (case_of(((0, 5),)), r"adapter=5 must lie in 0\.\.4 with max_loras=2"),
        (case_of(((0, 1),), max_loras=0), r"adapter=1 must lie in 0\.\.0 with max_loras=0"),
        (case_of(((0, 1), (1, 2), (2, 3))), r"\[1, 2, 3\] are more than max_loras=2"),
        (case_of(((0, 1),), ((0, 2),)), "adapter=2 contradicts 1 given earlier for request 0"),
        (case_of(((0, -1),)), "adapter=-1 must lie in"),
        (case_of(((0, 0),), max_loras=65), "must lie in 0..64"),
    ],
)
def test_what_no_engine_has_is_refused(case: Case, said: str) -> None:
    with pytest.raises(InvalidCase, match=said):
        validate(case)


def test_a_case_shrinks_to_one_adapter() -> None:
    case = case_of(((0, 1), (1, 3)), ((1, 3), (2, 4), (0, 1)), ((2, 4), (1, 3)), max_loras=3)

    def fails(one: Case) -> bool:
        return any(map(adapters_of, one.steps))

    (step,) = minimise(case, fails).steps
    assert [row.adapter for row in step.rows] == [1]


def test_a_case_in_which_one_adapter_takes_the_place_of_another_keeps_both() -> None:
    case = case_of(((0, 2), (1, 4)), ((1, 4), (2, 2)), max_loras=3)

    def replaces(one: Case) -> bool:
        named = map(adapters_of, one.steps)
        return any(after - before and before - after for before, after in pairwise(named))

    apart = case_of(((0, 1),), ((1, 2),), max_loras=1)
    assert replaces(apart)
    assert minimise(apart, replaces).config.max_loras == 1
    assert not replaces(with_config(case, max_loras=1))


def test_fewer_adapters_at_once_leave_those_with_the_lowest_numbers() -> None:
    case = with_config(case_of(((0, 1), (1, 4))), max_loras=1)
    assert [row.adapter for row in case.steps[0].rows] == [1, 1]
    assert most_adapters(case.config) == 3
