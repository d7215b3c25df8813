"""Layers with recurrent states that verify drafts: slots, what stays of a step, what is there."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from fuzzgraph.capabilities import WIDEST, Capabilities, unsupported_case, unsupported_setting
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.case.verified_states import Computed, states_each, verified_prompts
from fuzzgraph.case.waiting import first_wait
from fuzzgraph.content import content_for
from fuzzgraph.errors import InvalidCase
from fuzzgraph.execution.state_planes import StatePlane, state_planes
from fuzzgraph.layout import plan
from fuzzgraph.ports import Pools
from fuzzgraph.recurrent_layers.delta_rule import DELTA_COLUMNS, DELTA_WIDTH
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.world import FIRST_ROW, Batch

DRAFTS = 4
Row = tuple[int, int, int]


def config(**settings: Any) -> EngineConfig:
    return EngineConfig(
        **{
            "modes": ("target_verify",), "recurrent_state": True, "draft_tokens": DRAFTS,
            "capture_bs": (2, 4), "max_context_len": 64, "req_pool_size": 4, **settings,
        }
    )  # fmt: skip


def verify(*rows: Row, finish: tuple[int, ...] = ()) -> ReplayStep:
    """A request, its length and its new tokens for each row."""
    made = [BatchRow(request=name, seq_len=length, new_tokens=new) for name, length, new in rows]
    return ReplayStep(mode="target_verify", rows=tuple(made), finish=finish)


def case(*steps: ReplayStep, **settings: Any) -> Case:
    return validate(Case(schema_version=1, config=config(**settings), steps=steps))


# The end of a prompt, a verify of which two of four tokens stay, one of which all stay.
GROWN = (
    verify((0, 5, 1), (1, 9, 2)),
    verify((0, 9, 4), (1, 13, 4)),
    verify((0, 11, 4), (1, 17, 4)),
)


@pytest.mark.parametrize(
    ("computed", "cached", "kept"),
    [
        (Computed(5, 1, 4, 4), 9, 4),
        (Computed(5, 1, 4, 4), 6, 1),
        (Computed(5, 1, 4, 4), 5, 0),
        (Computed(5, 1, 4, 4), 10, 0),
        (Computed(5, 4, 4, 1), 9, 1),
        (Computed(5, 4, 4, 1), 8, 0),
        (Computed(5, 1, 1, 4), 6, 1),
        (Computed(5, 1, 1, 4), 7, 0),
    ],
)
def test_a_step_goes_on_from_a_token_of_the_last_one(
    computed: Computed, cached: int, kept: int
) -> None:
    assert computed.kept(cached) == kept


@pytest.mark.parametrize(
    ("settings", "each"),
    [
        ({}, DRAFTS),
        ({"modes": ("decode",)}, 1),
        ({"recurrent_state": False}, 0),
    ],
)
def test_a_request_has_a_state_for_each_token_of_a_verify(
    settings: dict[str, Any], each: int
) -> None:
    assert states_each(config(**settings)) == each


def test_requests_share_no_state() -> None:
    for batch in plan(case(*GROWN)):
        slots = batch.draft_state_slots
        assert slots.shape == (2, DRAFTS)
        assert slots[:, 0].tolist() == batch.state_slots.tolist()
        assert len(set(slots.ravel().tolist())) == 2 * DRAFTS
        assert slots.min() >= FIRST_ROW
        assert batch.own_state_slots.tolist() == slots.ravel().tolist()


def test_states_of_a_request_that_left_are_given_to_another() -> None:
    leaves = case(
        *GROWN, verify((0, 15, 4), finish=(1,)), verify((0, 19, 4), (2, 6, 1), (3, 7, 1), (4, 8, 1))
    )
    first, *_, last = plan(leaves)
    others = set(last.draft_state_slots[1:].ravel().tolist())
    assert set(first.draft_state_slots[1].tolist()) <= others


def test_a_batch_says_how_many_tokens_of_the_last_step_stayed() -> None:
    kept = [batch.kept_tokens.tolist() for batch in plan(case(*GROWN))]
    assert kept == [[0, 0], [1, 1], [2, 4]]


def test_a_request_that_does_not_go_on_begins_again() -> None:
    steps = (verify((0, 5, 1)), verify((0, 30, 4)), verify((0, 30, 4)), verify((0, 31, 1)))
    again = case(*steps)
    # The second and the third step begin; the last goes on from the only state of the third.
    assert [batch.kept_tokens.tolist() for batch in plan(again)] == [[0], [0], [0], [1]]
    assert list(verified_prompts(again)) == [(0, 1), (1, 4), (2, 4)]


def test_rows_of_a_batch_keep_their_states() -> None:
    batch = plan(case(*GROWN))[2]
    part = batch.with_rows(np.array([1]))
    assert part.draft_state_slots.tolist() == [batch.draft_state_slots[1].tolist()]
    assert part.kept_tokens.tolist() == [4]


def test_a_batch_of_decodes_has_no_more_than_one_state() -> None:
    rows = (BatchRow(request=0, seq_len=5),)
    (batch,) = plan(case(ReplayStep(rows=rows), modes=("decode",)))
    assert (batch.draft_state_slots.size, batch.kept_tokens.size) == (0, 0)
    assert batch.own_state_slots.tolist() == batch.state_slots.tolist()


def test_mixed_modes_have_no_states() -> None:
    with pytest.raises(InvalidCase, match=r"config\.recurrent_state"):
        case(verify((0, 5, 4)), modes=("decode", "target_verify"))


def pools(states: int) -> Pools:
    return Pools(
        delta_state=torch.zeros(states, DELTA_WIDTH),
        delta_conv_state=torch.zeros(states, CONV_WIDTH - 1 + DRAFTS - 1, DELTA_COLUMNS),
    )


def planes() -> tuple[StatePlane, StatePlane]:
    made = config()
    state, inputs = state_planes(pools(FIRST_ROW + 16), content_for(made), made)
    return state, inputs


def state_behind(plane: StatePlane, batch: Batch, row: int, tokens: int) -> torch.Tensor:
    return plane.values(plane.content, batch, np.array([row]), np.array([tokens]))[0]


def test_a_verify_goes_on_from_the_state_behind_the_last_token_that_stayed() -> None:
    state, _ = planes()
    batch = plan(case(*GROWN))[2]
    found = state.before(batch)
    assert found.slots.tolist() == [
        batch.draft_state_slots[0, 1],
        batch.draft_state_slots[1, 3],
    ]
    for row, cached in enumerate((7, 13)):
        assert torch.equal(found.values[row], state_behind(state, batch, row, cached))


def test_a_verify_leaves_a_state_behind_each_token() -> None:
    state, _ = planes()
    batch = plan(case(*GROWN))[2]
    found = state.after(batch)
    assert found.rows.tolist() == [0] * 4 + [1] * 4
    assert found.slots.tolist() == batch.draft_state_slots.ravel().tolist()
    for token in range(4):
        assert torch.equal(found.values[token], state_behind(state, batch, 0, 8 + token))


def test_the_end_of_a_prompt_leaves_one_state() -> None:
    state, _ = planes()
    batch = plan(case(*GROWN))[0]
    found = state.after(batch)
    assert found.slots.tolist() == batch.state_slots.tolist()
    for row, length in enumerate((5, 9)):
        assert torch.equal(found.values[row], state_behind(state, batch, row, length))


def test_inputs_that_stayed_lie_behind_older_ones() -> None:
    """Of row 0 two tokens stayed: its next token sees the second to the fourth input there."""
    _, inputs = planes()
    batch = plan(case(*GROWN))[2]
    found = inputs.before(batch)
    assert found.slots.tolist() == batch.state_slots.tolist()
    last = inputs.values(inputs.content, batch, np.arange(2), batch.cached_lens, 6)
    # One older input that is known before the three that the next token sees; then nobody says.
    assert torch.equal(found.values[0, :4], last[0, 2:])
    assert found.values[0, 4:].isnan().all()
    assert torch.equal(found.values[1], last[1])


def test_a_verify_leaves_the_inputs_of_all_its_tokens() -> None:
    _, inputs = planes()
    batch = plan(case(*GROWN))[2]
    found = inputs.after(batch)
    last = inputs.values(inputs.content, batch, np.arange(2), batch.seq_lens, 6)
    assert torch.equal(found.values, last)


def test_the_end_of_a_prompt_leaves_the_last_three_inputs() -> None:
    _, inputs = planes()
    batch = plan(case(*GROWN))[0]
    found = inputs.after(batch)
    last = inputs.values(inputs.content, batch, np.arange(2), batch.seq_lens)
    assert torch.equal(found.values[:, :3], last)
    assert found.values[:, 3:].isnan().all()


def can(**has: Any) -> Capabilities:
    return WIDEST.replace(**has)


def test_an_engine_says_whether_its_recurrent_layers_verify() -> None:
    said = unsupported_setting(can(recurrent_verify=False), config())
    assert said == "recurrent_state in target_verify is not driven"
    assert unsupported_setting(can(), config()) is None


@pytest.mark.parametrize(
    ("has", "steps", "said"),
    [
        ({"verified_prompts": False}, GROWN, "steps[0] with 2 tokens of a prompt is not driven"),
        (
            {"waiting": False},
            (GROWN[0], verify((0, 9, 4)), verify((0, 11, 4), (1, 13, 4))),
            "steps[1] without a request that comes again is not driven",
        ),
        ({"verified_prompts": False}, (verify((0, 5, 1)), verify((0, 9, 4))), None),
        ({"waiting": False}, GROWN, None),
    ],
)
def test_cases_that_an_engine_does_not_run_are_named(
    has: dict[str, Any], steps: tuple[ReplayStep, ...], said: str | None
) -> None:
    assert unsupported_case(can(**has), case(*steps)) == said


@pytest.mark.parametrize(
    ("steps", "waits"),
    [
        ((verify((0, 5, 1), (1, 6, 1)), verify((0, 9, 4))), None),
        ((verify((0, 5, 1), (1, 6, 1)), verify((0, 9, 4)), verify((1, 10, 4))), 1),
        ((verify((0, 5, 1)), ReplayStep(mode="idle"), verify((0, 9, 4))), 1),
        ((verify((0, 5, 1)), verify((1, 6, 1), finish=(0,)), verify((0, 9, 4))), None),
    ],
)
def test_a_request_waits_that_a_step_passes_over(
    steps: tuple[ReplayStep, ...], waits: int | None
) -> None:
    made = Case(schema_version=1, config=config(modes=("target_verify", "idle")), steps=steps)
    assert first_wait(made) == waits


def drawn(has: Capabilities) -> list[Case]:
    found: list[Case] = []
    draw(cases(has, DEFAULT.at(0)), 3, 60, found.append)
    return found


VERIFIER = Capabilities(
    modes=("target_verify", "idle"), max_batch=4, max_draft_tokens=6, ragged_verify=True,
    recurrent_state=True, recurrent_only=True, recurrent_verify=True, max_context_len=64,
)  # fmt: skip


def test_generated_cases_ask_for_no_more_than_an_engine_runs() -> None:
    has = VERIFIER.replace(verified_prompts=False, waiting=False)
    for one in drawn(has):
        assert unsupported_case(has, one) is None


def test_generated_verifies_keep_no_draft_some_and_all() -> None:
    has = VERIFIER.replace(verified_prompts=False, waiting=False)
    found = [
        (int(stayed), one.config.draft_tokens)
        for one in drawn(has)
        for batch in plan(one)
        for stayed in batch.kept_tokens
    ]
    assert sum(stayed == 1 for stayed, _ in found) > 20
    assert sum(stayed == drafts for stayed, drafts in found) > 5
    assert any(1 < stayed < drafts for stayed, drafts in found)


def test_generated_cases_of_an_engine_without_limits_have_waiting_requests_and_prompts() -> None:
    found = drawn(VERIFIER)
    assert any(first_wait(one) is not None for one in found)
    assert any(tokens > 1 for one in found for _, tokens in verified_prompts(one))
