"""Rings beside recurrent states, in drawn cases."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT, cases, draw

CAN = Capabilities(
    recurrent_state=True,
    recurrent_only=True,
    state_tracking=True,
    state_rings=True,
    state_flushes=True,
    max_context_len=64,
)


def drawn(can: Capabilities, count: int = 150) -> list[Case]:
    found: list[Case] = []
    for block in range(count // 50):  # each has configs of its own
        draw(cases(can, DEFAULT.at(block)), block, 50, found.append)
    return found


def test_a_third_of_the_cases_have_rings_and_keep_no_states_besides() -> None:
    found = drawn(CAN)
    with_rings = [case.config for case in found if case.config.state_ring_len]
    assert len(with_rings) >= len(found) / 3
    assert not any(config.state_track_interval for config in with_rings)
    assert len({config.state_ring_len for config in with_rings}) > 2
    assert any(config.state_flush_interval for config in with_rings)


def test_a_third_of_them_empty_a_ring_that_holds_something() -> None:
    with_rings = [case for case in drawn(CAN) if case.config.state_ring_len]
    emptied = [
        case
        for case in with_rings
        if any(((one.ring_depths > 0) & (one.ring_left == 0)).any() for one in plan(case))
    ]
    assert len(emptied) > len(with_rings) / 3


def test_a_target_without_them_gets_none() -> None:
    without = drawn(CAN.replace(state_rings=False, state_flushes=False), 60)
    assert not any(case.config.state_ring_len for case in without)
    never = drawn(CAN.replace(state_flushes=False), 60)
    assert not any(case.config.state_flush_interval for case in never)


def test_a_third_of_the_cases_without_a_ring_bound_decays_where_a_target_may() -> None:
    configs = [case.config for case in drawn(CAN.replace(safe_gates=True))]
    without = [config for config in configs if not config.state_ring_len]
    bounded = [config for config in configs if config.safe_gate]
    assert len(without) > len(bounded) > len(without) / 3
    assert not any(config.state_ring_len for config in bounded)
    assert not any(case.config.safe_gate for case in drawn(CAN, 60))


def test_a_few_cases_have_wide_linear_heads_where_a_target_may() -> None:
    configs = [case.config for case in drawn(CAN.replace(linear_head_dims=(0, 128)), 300)]
    wide = [config for config in configs if config.linear_head_dim == 128]
    assert len(configs) / 4 > len(wide) > len(configs) / 20
    assert len({bool(config.state_ring_len) for config in wide}) == 2
    assert not any(case.config.linear_head_dim for case in drawn(CAN, 60))
