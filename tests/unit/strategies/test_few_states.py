"""Fewer recurrent states than rows of the request pool, in drawn cases."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.world import FIRST_ROW

CAN = Capabilities(recurrent_state=True, recurrent_only=True, few_states=True)


def drawn(can: Capabilities, count: int = 300) -> list[Case]:
    found: list[Case] = []
    draw(cases(can, DEFAULT.at(3)), 3, count, found.append)
    return found


def test_requests_lie_in_rows_beyond_the_number_of_states() -> None:
    few = [case for case in drawn(CAN) if case.config.state_pool_size]
    beyond = [
        case
        for case in few
        for batch in plan(case)
        if (batch.req_pool_indices >= FIRST_ROW + case.config.state_pool_size).any()
    ]
    assert len(beyond) > 30


def test_each_request_has_a_slot_of_its_own_among_few() -> None:
    for case in drawn(CAN, 100):
        slots = FIRST_ROW + (case.config.state_pool_size or case.config.req_pool_size)
        for batch in plan(case):
            taken = batch.state_slots.tolist()
            assert len(set(taken)) == batch.raw_bs
            assert all(FIRST_ROW <= slot < slots for slot in taken)


def test_a_target_without_them_gets_none() -> None:
    cases_without = drawn(CAN.replace(few_states=False), 100)
    assert all(case.config.state_pool_size == 0 for case in cases_without)


def case_of(*requests: int, **settings: Any) -> Case:
    rows = tuple(BatchRow(request=request, seq_len=2) for request in requests)
    config = EngineConfig(**{"recurrent_state": True, "req_pool_size": 4, **settings})
    return Case(schema_version=1, config=config, steps=(ReplayStep(rows=rows),))


@pytest.mark.parametrize(
    ("case", "said"),
    [
        (case_of(0, 1, 2, state_pool_size=2), "live requests=3 exceed state_pool_size=2"),
        (case_of(0, 1, req_pool_size=1, state_pool_size=1), "exceed req_pool_size=1"),
        (case_of(0, state_pool_size=2, recurrent_state=False), "needs recurrent_state"),
        (case_of(0, state_pool_size=-1), "must lie in 0..4096"),
    ],
)
def test_what_no_pool_of_states_has_is_refused(case: Case, said: str) -> None:
    with pytest.raises(InvalidCase, match=said):
        validate(case)
