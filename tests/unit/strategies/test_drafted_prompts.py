"""Requests that join a verify with drafts behind their prompts, in drawn cases."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from fuzzgraph.capabilities import Capabilities, unsupported_case
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.case.verified_states import verified_prompts
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.world import Batch

CAN = Capabilities(
    modes=("target_verify",), recurrent_state=True, recurrent_only=True, recurrent_verify=True,
    verified_prompts=False, ragged_verify=True, drafted_prompts=True, max_draft_tokens=4,
    waiting=False,
)  # fmt: skip


def drawn(can: Capabilities, count: int = 200) -> list[Case]:
    found: list[Case] = []
    draw(cases(can, DEFAULT.at(3)), 3, count, found.append)
    return found


def joining(case: Case) -> Iterator[tuple[Batch, int]]:
    """Each batch and row that begins a request with drafts."""
    for batch in plan(case):
        for row in range(batch.raw_bs):
            if not batch.kept_tokens[row] and batch.new_lens[row] > 1:
                yield batch, row


def test_requests_join_with_drafts_behind_their_prompts() -> None:
    found = [pair for case in drawn(CAN) for pair in joining(case)]
    assert len(found) > 100
    assert sum(int(batch.cached_lens[row]) == 0 for batch, row in found) > 3


def test_none_begins_with_drafts_and_with_nothing_beside_or_behind_it() -> None:
    for case in drawn(CAN):
        for batch, row in joining(case):
            assert batch.cached_lens[row] or (batch.kept_tokens > 0).any()


def test_one_token_stays_of_those_that_a_request_joined_with() -> None:
    checked = 0
    for case in drawn(CAN):
        before: dict[int, int] = {}
        for batch in plan(case):
            for row, request in enumerate(batch.requests.tolist()):
                if request in before and batch.kept_tokens[row]:
                    assert batch.cached_lens[row] - before[request] == 1
                    checked += 1
            before = {int(one.requests[row]): int(one.cached_lens[row])
                      for one, row in joining(case) if one.step == batch.step}  # fmt: skip
    assert checked > 50


def test_every_drawn_case_is_one_that_the_target_drives() -> None:
    assert {unsupported_case(CAN, case) for case in drawn(CAN)} == {None}


def test_a_target_without_them_gets_none() -> None:
    without = drawn(CAN.replace(drafted_prompts=False), 100)
    assert not any(case.config.drafted_prompts or [*joining(case)] for case in without)


def verify(*rows: tuple[int, int, int]) -> ReplayStep:
    made = [BatchRow(request=name, seq_len=length, new_tokens=new) for name, length, new in rows]
    return ReplayStep(mode="target_verify", rows=tuple(made))


def case_of(*steps: ReplayStep, **settings: Any) -> Case:
    config = {"modes": ("target_verify",), "recurrent_state": True, "draft_tokens": 3,
              "max_context_len": 32, "drafted_prompts": True, **settings}  # fmt: skip
    return validate(Case(schema_version=1, config=EngineConfig(**config), steps=steps))


JOINED = case_of(
    verify((0, 5, 1)), verify((0, 8, 3), (1, 3, 3), (2, 1, 1)), verify((0, 11, 3), (1, 4, 3))
)


def test_a_row_that_joins_leaves_a_state_behind_each_token() -> None:
    states = [batch.new_states.tolist() for batch in plan(JOINED)]
    assert states == [[1], [3, 3, 1], [3, 3]]


def test_the_next_step_goes_on_from_the_prompts_last_token() -> None:
    assert plan(JOINED)[2].kept_tokens.tolist() == [3, 1]


def test_placeholders_are_no_tokens_of_the_prompt() -> None:
    assert list(verified_prompts(JOINED)) == [(0, 1), (1, 1), (1, 1)]


def test_a_request_alone_with_nothing_cached_has_a_prompt_and_no_drafts() -> None:
    assert list(verified_prompts(case_of(verify((0, 3, 3))))) == [(0, 3)]


def test_a_request_over_cached_tokens_has_drafts_though_it_is_alone() -> None:
    assert list(verified_prompts(case_of(verify((0, 8, 3))))) == [(0, 1)]


@pytest.mark.parametrize(
    "settings",
    [
        {"recurrent_state": False},
        {"modes": ("decode",)},
        {"spec_topk": 2, "recurrent_state": False},
    ],
)
def test_drafts_behind_prompts_need_a_verify_of_chains_with_states(
    settings: dict[str, Any],
) -> None:
    with pytest.raises(InvalidCase, match=r"config\.drafted_prompts=True needs recurrent_state"):
        case_of(ReplayStep(rows=(BatchRow(request=0, seq_len=3),)), **settings)
