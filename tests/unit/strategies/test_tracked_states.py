"""States that are kept for a prefix cache, in drawn cases."""

from __future__ import annotations

import pytest

from fuzzgraph.capabilities import Capabilities, prompt_interval
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

PROMPTS = CAN.replace(
    modes=("prefill",), prefill_runners=("breakable",), max_context_len=256, state_chunk=64
)


def drawn(can: Capabilities, count: int = 200) -> list[Case]:
    found: list[Case] = []
    for block in range(count // 50):  # each has configs of its own
        draw(cases(can, DEFAULT.at(block)), block, 50, found.append)
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


@pytest.mark.parametrize(
    ("can", "least", "most"),
    [
        (
            CAN.replace(modes=("target_verify",), recurrent_verify=True, max_draft_tokens=6),
            1 / 3,
            1 / 2,
        ),
        (
            CAN.replace(modes=("draft_extend",), recurrent_state=False, recurrent_only=False),
            1 / 5,
            1 / 2,
        ),
    ],
    ids=["verify", "draft_extend"],
)
def test_beside_drafts_states_are_kept_behind_no_fewer_tokens_than_a_verify_has(
    can: Capabilities, least: float, most: float
) -> None:
    found = [case.config for case in drawn(can.replace(max_draft_tokens=6))]
    keeping = [config for config in found if config.state_track_interval]
    assert least < len(keeping) / len(found) < most
    assert all(config.state_track_interval >= config.draft_tokens for config in keeping)
    assert all(config.state_track_interval % config.page_size == 0 for config in keeping)


def test_a_fifth_of_the_verifies_with_an_interval_keep_a_state() -> None:
    can = CAN.replace(modes=("target_verify",), recurrent_verify=True, max_draft_tokens=4)
    keeping = [case for case in drawn(can, 120) if case.config.state_track_interval]
    steps = [batch.state_tracked for case in keeping for batch in plan(case)]
    assert sum(bool(tracked.any()) for tracked in steps) > len(steps) // 5


def test_a_target_that_keeps_none_gets_none() -> None:
    without = drawn(CAN.replace(state_tracking=False), 60)
    assert all(case.config.state_track_interval == 0 for case in without)


def test_prompts_keep_states_behind_whole_chunks_and_whole_pages() -> None:
    found = drawn(PROMPTS, 300)
    keeping = [case.config for case in found if case.config.state_track_interval]
    assert len(found) // 8 < len(keeping) < len(found) // 2
    assert {config.state_track_interval for config in keeping} == {64}
    assert prompt_interval(PROMPTS, 128) == 128


def test_two_of_five_cases_whose_prompts_keep_states_have_one_that_does() -> None:
    keeping = [case for case in drawn(PROMPTS, 600) if case.config.state_track_interval]
    lens = [[batch.tracked_lens for batch in plan(case)] for case in keeping]
    with_one = [each for each in lens if any(one.any() for one in each)]
    assert 5 * len(with_one) > 2 * len(lens) > 0


def test_prefixes_branch_in_prompts_that_keep_states_and_nowhere_else() -> None:
    found = [case.config for case in drawn(PROMPTS.replace(prefix_branches=True), 300)]
    branching = [config for config in found if config.prefix_branches]
    keeping = [config for config in found if config.state_track_interval]
    assert len(keeping) / 5 < len(branching) < len(keeping)
    assert all(config.state_track_interval for config in branching)


def test_prompts_of_kernels_without_chunks_keep_none() -> None:
    without = drawn(PROMPTS.replace(state_chunk=0), 60)
    assert all(case.config.state_track_interval == 0 for case in without)
