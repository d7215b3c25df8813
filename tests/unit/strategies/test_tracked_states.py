"""States that are kept for a prefix cache, in drawn cases."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT, cases, draw

CAN = Capabilities(
    page_sizes=(1, 4, 16),
    recurrent_state=True,
    recurrent_only=True,
    state_tracking=True,
    max_context_len=64,
)


def drawn(can: Capabilities, count: int = 200) -> list[Case]:
    found: list[Case] = []
    draw(cases(can, DEFAULT.at(3)), 3, count, found.append)
    return found


def test_half_the_configs_keep_states_behind_whole_pages() -> None:
    found = [case.config for case in drawn(CAN)]
    keeping = [config for config in found if config.state_track_interval]
    assert len(found) // 4 < len(keeping) < 3 * len(found) // 4
    assert all(config.state_track_interval % config.page_size == 0 for config in keeping)


def test_steps_with_a_state_to_keep_are_no_rarity() -> None:
    keeping = [case for case in drawn(CAN, 600) if case.config.state_track_interval]
    steps = [batch.state_tracked for case in keeping for batch in plan(case)]
    # About one in six; of 100 cases alone between one in seven and one in four.
    assert sum(bool(tracked.any()) for tracked in steps) > len(steps) // 7


def test_a_target_that_keeps_none_gets_none() -> None:
    without = drawn(CAN.replace(state_tracking=False), 60)
    assert all(case.config.state_track_interval == 0 for case in without)
