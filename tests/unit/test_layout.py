"""The scheduler's truth: who owns which row, page and slot, and what a step computes."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW, Batch

ORDERS = ("ascending", "descending", "shuffled", "fragmented")


def row(request: int, seq_len: int, new_tokens: int = 1, encoder_len: int = 0) -> BatchRow:
    return BatchRow(
        request=request, seq_len=seq_len, new_tokens=new_tokens, encoder_len=encoder_len
    )


def step(*rows: BatchRow, mode: Any = "decode", finish: tuple[int, ...] = ()) -> ReplayStep:
    return ReplayStep(mode=mode, rows=rows, finish=finish)


def planned(*steps: ReplayStep, case: dict[str, Any] | None = None, **config: Any) -> list[Batch]:
    modes = tuple({one.mode: None for one in steps if one.mode != "idle"}) or ("decode",)
    if "prefill" in modes:
        config.setdefault("capture_tokens", (8,))
    whole = Case(
        schema_version=1,
        config=EngineConfig(modes=modes, **config),
        steps=steps,
        **(case or {}),
    )
    return list(plan(validate(whole)))


def used(batch: Batch) -> list[set[int]]:
    return [set(batch.kv_slots.row(i).tolist()) for i in range(batch.raw_bs)]


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("page_size", [1, 3, 16])
def test_no_two_requests_share_a_slot_without_a_shared_prefix(order: str, page_size: int) -> None:
    steps = [step(*(row(i, 4 + i + k) for i in range(4))) for k in range(4)]

    for batch in planned(*steps, case={"page_order": order, "seed": 5}, page_size=page_size):
        for one, other in itertools.combinations(used(batch), 2):
            assert one.isdisjoint(other)
        assert len(set(batch.req_pool_indices.tolist())) == 4


@pytest.mark.parametrize("order", ORDERS)
def test_reserved_and_trap_numbers_are_never_handed_out(order: str) -> None:
    (batch,) = planned(
        step(*(row(i, 5, encoder_len=2) for i in range(8))),
        case={"page_order": order},
        page_size=2,
        max_encoder_len=3,
        recurrent_state=True,
        capture_bs=(8,),
    )

    assert batch.req_pool_indices.min() >= FIRST_ROW
    assert batch.state_slots.min() >= FIRST_ROW
    assert batch.pages.values.min() >= FIRST_PAGE
    assert batch.kv_slots.values.min() >= FIRST_PAGE * 2
    assert batch.encoder_slots.values.min() >= FIRST_PAGE * 2


@pytest.mark.parametrize("order", ORDERS)
def test_every_number_of_a_pool_can_be_used(order: str) -> None:
    (batch,) = planned(
        step(*(row(i, 3) for i in range(4))),
        case={"page_order": order, "seed": 1},
        req_pool_size=4,
        kv_pool_pages=12,
    )

    assert sorted(batch.req_pool_indices.tolist()) == list(range(FIRST_ROW, FIRST_ROW + 4))
    assert sorted(batch.kv_slots.values.tolist()) == list(range(FIRST_PAGE, FIRST_PAGE + 12))


def test_page_orders_are_what_they_are_called() -> None:
    pages = {
        order: planned(step(row(0, 12)), case={"page_order": order, "seed": 2})[0].pages.values
        for order in ORDERS
    }

    assert np.diff(pages["ascending"]).tolist() == [1] * 11
    assert np.diff(pages["descending"]).tolist() == [-1] * 11
    assert 1 not in np.abs(np.diff(pages["fragmented"]))
    assert pages["shuffled"].tolist() != sorted(pages["shuffled"].tolist())


def test_slots_of_a_row_follow_from_its_pages() -> None:
    (batch,) = planned(step(row(0, 7)), page_size=4, case={"page_order": "shuffled"})

    pages = batch.pages.row(0)
    assert len(pages) == 2
    assert batch.kv_slots.row(0).tolist() == [pages[i // 4] * 4 + i % 4 for i in range(7)]


def test_a_continuing_request_keeps_its_row_and_slots_and_grows() -> None:
    first, second = planned(step(row(0, 4), row(1, 3)), step(row(1, 4), row(0, 6)))

    assert second.req_pool_indices.tolist() == first.req_pool_indices[::-1].tolist()
    assert second.kv_slots.row(1)[:4].tolist() == first.kv_slots.row(0).tolist()
    assert second.kv_tokens.row(1)[:4].tolist() == first.kv_tokens.row(0).tolist()


def test_a_request_that_got_shorter_keeps_its_pages() -> None:
    _, second = planned(step(row(0, 9)), step(row(0, 2)), page_size=2)

    assert len(second.pages.row(0)) == 5
    assert len(second.kv_slots.row(0)) == 2


@pytest.mark.parametrize("order", ORDERS)
def test_what_a_finished_request_leaves_is_handed_out_again(order: str) -> None:
    first, second = planned(
        step(row(0, 6)), step(row(1, 6), finish=(0,)), case={"page_order": order, "seed": 4}
    )

    assert used(second)[0] == used(first)[0]
    assert second.req_pool_indices.tolist() == first.req_pool_indices.tolist()


def test_a_request_that_waits_keeps_what_it_owns() -> None:
    first, second = planned(step(row(0, 6)), step(row(1, 6)))

    assert used(second)[0].isdisjoint(used(first)[0])


def test_new_tokens_are_the_last_ones_of_their_row() -> None:
    (batch,) = planned(
        step(row(0, 5, 3), row(1, 4, 0), row(2, 2, 2), mode="draft_extend"), draft_tokens=4
    )

    assert batch.num_tokens == 5
    assert batch.token_rows.tolist() == [0, 0, 0, 2, 2]
    assert batch.positions.tolist() == [2, 3, 4, 0, 1]
    assert batch.input_ids.tolist() == [
        *batch.kv_tokens.row(0)[2:].tolist(),
        *batch.kv_tokens.row(2).tolist(),
    ]
    assert batch.slot_mapping.tolist() == [
        *batch.kv_slots.row(0)[2:].tolist(),
        *batch.kv_slots.row(2).tolist(),
    ]
    assert batch.cached_lens.tolist() == [2, 4, 0]


def test_shared_prefix_pages_hold_the_same_tokens_and_nobody_writes_them() -> None:
    steps = [step(*(row(i, 9 + i + k) for i in range(3))) for k in range(2)]

    for batch in planned(*steps, page_size=4, case={"shared_prefix_pages": 2}):
        shared = set(batch.kv_slots.row(0)[:8].tolist())
        for i in range(3):
            assert set(batch.kv_slots.row(i)[:8].tolist()) == shared
            assert batch.kv_tokens.row(i)[:8].tolist() == batch.kv_tokens.row(0)[:8].tolist()
        assert shared.isdisjoint(batch.slot_mapping.tolist())
        assert len({tuple(batch.kv_tokens.row(i)[8:9].tolist()) for i in range(3)}) > 1


def test_a_prefix_is_shared_no_further_than_every_step_leaves_it_alone() -> None:
    first, second = planned(
        step(row(0, 9), row(1, 9)),
        step(row(1, 6, 2), mode="draft_extend"),
        page_size=4,
        case={"shared_prefix_pages": 2},
    )

    assert first.pages.row(0)[0] == first.pages.row(1)[0]
    assert first.pages.row(0)[1] != first.pages.row(1)[1]
    assert used(first)[0].isdisjoint(second.slot_mapping.tolist())


def test_the_shared_prefix_stays_while_one_request_has_it() -> None:
    first, second, third = planned(
        step(row(0, 5), row(1, 5)),
        step(row(1, 6), row(2, 5), finish=(0,)),
        step(row(3, 5), finish=(1, 2)),
        page_size=4,
        case={"shared_prefix_pages": 1},
    )

    assert first.pages.row(0)[0] == second.pages.row(0)[0] == second.pages.row(1)[0]
    assert len(third.pages.row(0)) == 2


def test_a_chain_counts_positions_on() -> None:
    (batch,) = planned(step(row(0, 7, 3), mode="target_verify"), draft_tokens=3)

    assert batch.tree_parents is not None
    assert batch.tree_parents.tolist() == [[-1, 0, 1]]
    assert batch.positions.tolist() == [4, 5, 6]


@pytest.mark.parametrize("topk", [2, 3])
def test_a_tree_has_parents_first_and_at_most_topk_children(topk: int) -> None:
    steps = [step(*(row(i, 12, 7) for i in range(4)), mode="target_verify") for _ in range(4)]

    batches = planned(*steps, draft_tokens=7, spec_topk=topk, case={"seed": 3})

    widest = 0
    for batch in batches:
        assert batch.tree_parents is not None
        for number, parents in enumerate(batch.tree_parents.tolist()):
            children = [parents.count(node) for node in range(7)]
            widest = max(widest, *children)
            assert parents[0] == -1
            assert all(0 <= parent < token for token, parent in enumerate(parents) if token)
            depths = batch.kv_positions.row(number)[5:] - 5
            assert all(
                depths[token] == (depths[parent] + 1 if token else 0)
                for token, parent in enumerate(parents)
            )
    assert widest == topk
    assert len({batch.tree_parents.tobytes() for batch in batches}) > 1  # type: ignore[union-attr]


def test_draft_slots_are_apart_from_every_request_and_free_again_after_the_step() -> None:
    draft = step(row(0, 5, 0), row(1, 3, 0), mode="draft")
    first, second = planned(draft, draft, spec_topk=2, spec_steps=3, page_size=4)

    assert len(first.slot_mapping) == len(set(first.slot_mapping.tolist())) == 12
    owned = {slot for page in first.pages.values.tolist() for slot in range(page * 4, page * 4 + 4)}
    assert owned.isdisjoint(first.slot_mapping.tolist())
    assert set(second.slot_mapping.tolist()) == set(first.slot_mapping.tolist())
    assert first.num_tokens == len(first.input_ids) == len(first.positions) == 4
    assert first.positions.tolist() == [5, 5, 3, 3]
    assert first.new_lens.tolist() == [0, 0]


def test_a_draft_of_one_branch_lies_in_what_its_rows_last_page_has_left() -> None:
    draft = step(row(0, 5, 0), row(1, 3, 0), row(2, 4, 0), mode="draft")
    first, second = planned(draft, draft, spec_topk=1, spec_steps=3, page_size=4)

    slots = first.slot_mapping.reshape(3, 3)
    assert slots[0].tolist() == (first.kv_slots.row(0)[-1] + 1 + np.arange(3)).tolist()
    assert slots[1, 0] == first.kv_slots.row(1)[-1] + 1
    owned = set(first.pages.values.tolist())
    assert owned.isdisjoint((slots[1, 1:] // 4).tolist()) and owned.isdisjoint(slots[2] // 4)
    assert second.slot_mapping.tolist() == first.slot_mapping.tolist()


def test_encoder_tokens_have_slots_of_their_own_and_stay() -> None:
    first, second = planned(
        step(row(0, 3, encoder_len=5), row(1, 3)),
        step(row(0, 4, encoder_len=5)),
        page_size=2,
        max_encoder_len=6,
    )

    assert first.encoder_lens.tolist() == [5, 0]
    assert set(first.encoder_slots.values.tolist()).isdisjoint(first.kv_slots.values.tolist())
    assert first.encoder_slots.row(0).tolist() == second.encoder_slots.row(0).tolist()
    assert first.encoder_tokens.row(0).tolist() == second.encoder_tokens.row(0).tolist()


def test_the_optional_input_is_there_only_where_the_step_has_it() -> None:
    with_it = ReplayStep(rows=(row(0, 3), row(1, 3)), mrope=True)
    first, second = planned(with_it, step(row(0, 4)))

    assert first.mrope is not None
    assert first.mrope.shape == (2,)
    assert second.mrope is None


def test_an_idle_step_is_empty() -> None:
    (batch,) = planned(step(mode="idle"))

    assert batch.raw_bs == batch.num_tokens == 0
    assert len(batch.kv_slots) == 0
    assert batch.kv_slots.values.dtype == np.int64


def test_the_same_case_gives_the_same_arrays() -> None:
    steps = [step(*(row(i, 4 + k) for i in range(3))) for k in range(2)]
    one, other = (planned(*steps, case={"seed": 9, "page_order": "shuffled"}) for _ in range(2))

    for left, right in zip(one, other, strict=True):
        assert left.kv_slots.values.tolist() == right.kv_slots.values.tolist()
        assert left.kv_tokens.values.tolist() == right.kv_tokens.values.tolist()


def test_another_seed_gives_other_tokens_and_another_shuffle() -> None:
    one, other = (
        planned(step(row(0, 12)), case={"seed": seed, "page_order": "shuffled"})[0]
        for seed in (0, 1)
    )

    assert one.kv_tokens.values.tolist() != other.kv_tokens.values.tolist()
    assert one.pages.values.tolist() != other.pages.values.tolist()


@pytest.mark.parametrize(
    ("steps", "config", "message"),
    [
        (
            (step(row(0, 4)), step(row(0, 4), row(7, 5))),
            {"kv_pool_pages": 8},
            "steps[1]: request 7 needs 5 more pages and 4 of kv_pool_pages=8 are free. Raise",
        ),
        (
            (step(row(0, 9, 0), mode="draft"),),
            {"kv_pool_pages": 5, "page_size": 2, "spec_steps": 2},
            "steps[0]: request 0 needs 1 more pages and 0 of kv_pool_pages=5 are free. Raise",
        ),
        (
            (step(row(3, 2, encoder_len=4)),),
            {"kv_pool_pages": 3, "max_encoder_len": 4},
            "steps[0]: request 3 needs 4 more pages and 3 of kv_pool_pages=3 are free. Raise",
        ),
    ],
    ids=["decode", "draft", "encoder"],
)
def test_running_out_of_pages_names_the_step_and_the_request(
    steps: tuple[ReplayStep, ...], config: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidCase) as caught:
        planned(*steps, **config)

    assert message in str(caught.value)


def test_running_out_of_rows_names_the_step_and_the_request() -> None:
    config = EngineConfig(req_pool_size=1)
    case = Case(schema_version=1, config=config, steps=(step(row(0, 1), row(5, 1)),))

    with pytest.raises(InvalidCase, match=r"steps\[0\]: request 5 .*req_pool_size=1"):
        plan(case)


def test_who_left_for_good_who_was_preempted_and_who_resumes_is_told() -> None:
    """Request 0 is preempted and comes back two steps later, request 1 ends, request 2 waits."""
    batches = planned(
        step(row(0, 3), row(1, 1), row(2, 1)),
        step(row(3, 1), finish=(0, 1)),
        step(row(0, 4)),
        step(row(0, 5), row(2, 2)),
    )
    told = [
        (one.finished.tolist(), one.preempted.tolist(), one.resumed.tolist()) for one in batches
    ]
    assert told == [([], [], []), ([1], [0], []), ([], [], [0]), ([], [], [])]
    before, after = batches[0].kv_tokens.row(0), batches[2].kv_tokens.row(0)
    assert after[:3].tolist() == before.tolist()  # it goes on with the tokens that it had


def test_the_next_token_of_a_row_is_the_one_that_it_goes_on_with() -> None:
    first, second = planned(step(row(0, 4), row(1, 2)), step(row(1, 3), row(0, 5)))
    assert second.input_ids.tolist() == first.next_tokens[[1, 0]].tolist()


def test_a_draft_that_its_verify_rejects_is_another_token_than_the_one_that_follows() -> None:
    verify: Any = "target_verify"
    first, second = planned(
        step(row(0, 7, 4), mode=verify), step(row(0, 9, 4), mode=verify), draft_tokens=4
    )  # tokens 3 to 6, of which 3 and 4 stay
    assert first.predicted[0] == first.input_ids[1]
    assert first.predicted[1] != first.input_ids[2]
    assert second.input_ids[0] == first.predicted[1]
    assert second.kv_tokens.row(0)[:5].tolist() == first.kv_tokens.row(0)[:5].tolist()


def test_all_drafts_stay_where_a_request_goes_on_behind_them() -> None:
    verify: Any = "target_verify"
    first, second = planned(
        step(row(0, 7, 3), mode=verify), step(row(0, 10, 3), mode=verify), draft_tokens=3
    )
    assert first.predicted.tolist() == [*first.input_ids[1:], second.input_ids[0]]


def test_a_chain_may_have_fewer_drafts_than_a_verify_has_places_for() -> None:
    (batch,) = planned(step(row(0, 7, 4), row(1, 3, 2), mode="target_verify"), draft_tokens=4)
    assert batch.positions.tolist() == [3, 4, 5, 6, 1, 2]


def test_a_prompt_goes_on_in_the_prefills_that_start_where_it_ended() -> None:
    prefill: Any = "prefill"
    batches = planned(
        step(row(0, 3, 3), mode=prefill),
        step(row(0, 7, 4), row(1, 2, 2), mode=prefill),
        step(row(0, 8, 1), row(1, 5, 2), mode=prefill),
    )
    lens = [[len(one.prompts.row(row)) for row in range(one.raw_bs)] for one in batches]
    # The last token of request 0 is sampled; request 1 skips one and is another prompt.
    assert lens == [[7], [7, 2], [8, 5]]
    assert batches[0].prompts.row(0).tolist() == batches[1].kv_tokens.row(0).tolist()


TRACKED: dict[str, Any] = {
    "recurrent_state": True,
    "state_track_interval": 4,
    "max_context_len": 32,
}
PROMPTS: dict[str, Any] = {**TRACKED, "capture_tokens": (16,)}


def test_a_decode_that_reaches_a_multiple_of_the_interval_keeps_its_state() -> None:
    steps = [step(row(0, 3 + k), row(1, 8 + k)) for k in range(3)]
    kept = [batch.state_tracked.tolist() for batch in planned(*steps, **TRACKED)]
    assert kept == [[0, 1], [1, 0], [0, 0]]


def test_a_prompt_keeps_the_state_behind_as_many_whole_intervals_as_it_computes() -> None:
    rows = (row(0, 14, new_tokens=9), row(1, 3, new_tokens=3), row(2, 8, new_tokens=4))
    steps = [ReplayStep(mode="prefill", rows=rows)]
    (batch,) = planned(*steps, **PROMPTS)
    assert batch.tracked_lens.tolist() == [13, 0, 8]
    assert batch.state_tracked.tolist() == [1, 0, 1]


def test_a_prompt_keeps_the_state_behind_the_prefix_that_it_shares_an_interval_before() -> None:
    rows = (row(0, 14, new_tokens=9), row(1, 9, new_tokens=9), row(2, 8, new_tokens=5))
    rest = (row(0, 22, new_tokens=8),)
    steps = [ReplayStep(mode="prefill", rows=one) for one in (rows, rest)]
    batches = planned(*steps, **PROMPTS, prefix_branches=True)
    # Request 1 has no such prefix, request 2 computes one interval; one prefix ends once.
    assert [batch.tracked_lens.tolist() for batch in batches] == [[9, 8, 7], [22]]


def test_a_step_that_keeps_no_state_leaves_the_slot_that_is_next() -> None:
    steps = [
        ReplayStep(mode="prefill", rows=(row(0, end, new_tokens=new),))
        for end, new in ((2, 2), (6, 4), (10, 4))
    ]
    first, second, third = planned(*steps, **PROMPTS)
    assert first.track_slots.tolist() == second.track_slots.tolist() != third.track_slots.tolist()


def test_kept_states_take_two_slots_of_their_request_in_turn() -> None:
    steps = [step(row(0, 4 + k)) for k in range(9)]
    batches = planned(*steps, **TRACKED)
    slots = [int(batch.track_slots[0]) for batch in batches]
    first, second = slots[0], slots[1]
    assert slots == [first, *[second] * 4, *[first] * 4]
    assert len({first, second, int(batches[0].state_slots[0])}) == 3


@pytest.mark.parametrize("order", ORDERS)
def test_kept_states_are_nobody_elses(order: str) -> None:
    steps = [step(*(row(i, 4 + k) for i in range(4))) for k in range(5)]
    batches = planned(*steps, case={"page_order": order, "seed": 5}, **TRACKED)
    owned = [{*batch.state_slots.tolist(), *batch.track_slots.tolist()} for batch in batches]
    assert [len(slots) for slots in owned] == [8] * 5
    assert all(min(slots) >= FIRST_ROW for slots in owned)


def test_a_step_may_write_the_slot_of_a_state_that_it_keeps_and_no_other() -> None:
    (batch,) = planned(step(row(0, 4), row(1, 5)), **TRACKED)
    own = [*batch.state_slots.tolist(), int(batch.track_slots[0])]
    assert batch.own_state_slots.tolist() == own


def test_rows_take_their_kept_states_along() -> None:
    (batch,) = planned(step(row(0, 4), row(1, 5)), **TRACKED)
    turned = batch.with_rows(np.array([1, 0]))
    assert turned.track_slots.tolist() == batch.track_slots.tolist()[::-1]
    assert turned.state_tracked.tolist() == [0, 1]


VERIFIES: dict[str, Any] = {**TRACKED, "draft_tokens": 3}


def verified(*lengths: int) -> list[Batch]:
    """A request whose verifies of three tokens end at these lengths."""
    steps = [step(row(0, length, 3), mode="target_verify") for length in lengths]
    return planned(*steps, **VERIFIES)


def test_a_verify_keeps_the_state_behind_the_boundary_that_its_tokens_reach_or_pass() -> None:
    lens = [int(batch.tracked_lens[0]) for batch in verified(7, 10, 12, 15)]
    # From 4 to 7, from 7 to 9 with one draft rejected, from 9 to 12, and from 12 on.
    assert lens == [0, 8, 12, 0]


def test_a_verify_keeps_no_state_where_it_rejects_the_drafts_that_reach_the_boundary() -> None:
    first, second = verified(8, 9)
    assert first.stayed_lens.tolist() == [6] and first.tracked_lens.tolist() == [0]
    assert first.track_slots.tolist() == second.track_slots.tolist()


def test_states_behind_verifies_take_two_slots_in_turn_beside_those_of_drafts() -> None:
    batches = verified(10, 13, 16)
    slots = [int(batch.track_slots[0]) for batch in batches]
    assert slots[0] == slots[2] != slots[1]
    drafts = batches[0].draft_state_slots.ravel().tolist()
    assert not {*slots} & {*drafts}
    assert batches[0].own_state_slots.tolist() == [*drafts, slots[0]]


def test_a_draft_extend_is_told_of_slots_and_keeps_no_state() -> None:
    steps = [step(row(0, end, 2), mode="draft_extend") for end in (3, 5, 7)]
    told = {**TRACKED, "recurrent_state": False, "draft_tokens": 2}
    first, second, third = planned(*steps, **told)
    assert not first.state_tracked.any() and not second.state_tracked.any()
    assert first.track_slots.tolist() == second.track_slots.tolist() != third.track_slots.tolist()


def test_without_an_interval_no_states_are_kept() -> None:
    (batch,) = planned(step(row(0, 4)), recurrent_state=True)
    assert not len(batch.track_slots) and not len(batch.state_tracked)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recurrent_state": False}, "needs recurrent_state and modes"),
        ({"page_size": 3}, "must be whole pages of 3 tokens"),
        ({"state_track_interval": -4}, "must lie in 0..131072"),
        ({"prefix_branches": True}, r"needs state_track_interval and modes=\['prefill'\]"),
    ],
)
def test_intervals_that_no_engine_has_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCase, match=said):
        planned(step(row(0, 4)), **{**TRACKED, **settings})


RINGS: dict[str, Any] = {
    "recurrent_state": True,
    "state_ring_len": 3,
    "max_context_len": 32,
}


def test_a_ring_fills_with_each_decode_and_is_emptied_by_its_last() -> None:
    batches = planned(*[step(row(0, 5 + k), row(1, 9 + k)) for k in range(4)], **RINGS)
    assert [batch.ring_depths.tolist() for batch in batches] == [[0, 0], [1, 1], [2, 2], [0, 0]]
    assert [batch.ring_left.tolist() for batch in batches] == [[1, 1], [2, 2], [0, 0], [1, 1]]
    assert [batch.rings_taken.tolist() for batch in batches] == [[1, 1], [0, 0], [0, 0], [0, 0]]


def test_a_ring_is_emptied_at_multiples_of_the_interval() -> None:
    lengths = (6, 7, 8, 9)
    batches = planned(*[step(row(0, end)) for end in lengths], **RINGS, state_flush_interval=7)
    assert [int(batch.rings_forced[0]) for batch in batches] == [0, 1, 0, 0]
    assert [int(batch.ring_left[0]) for batch in batches] == [1, 0, 1, 2]


def test_a_request_that_waits_keeps_its_ring_and_one_that_begins_anew_does_not() -> None:
    steps = step(row(0, 5), row(1, 9)), step(row(1, 10)), step(row(1, 11), row(0, 6))
    batches = planned(*steps, step(row(0, 9), row(1, 12)), **RINGS)
    assert [batch.ring_depths.tolist() for batch in batches] == [[0, 0], [1], [2, 1], [0, 0]]
    assert batches[3].rings_taken.tolist() == [1, 0]


def test_a_ring_of_verifies_takes_what_stays_and_begins_behind_it_when_it_is_emptied() -> None:
    ends = (7, 9, 10, 12)
    steps = [ReplayStep(mode="target_verify", rows=(row(0, end, new_tokens=2),)) for end in ends]
    batches = planned(*steps, **{**RINGS, "state_ring_len": 8, "draft_tokens": 2})
    # Of the second verify one token stays, of the others both.
    assert [int(batch.stayed_lens[0]) for batch in batches] == [7, 8, 10, 12]
    assert [int(batch.ring_left[0]) for batch in batches] == [2, 3, 0, 2]
    assert [int(batch.ring_starts_left[0]) for batch in batches] == [0, 0, 5, 5]


def test_rings_follow_their_rows() -> None:
    _, batch = planned(step(row(0, 5)), step(row(0, 6), row(1, 9)), **RINGS)
    turned = batch.with_rows(np.array([1, 0]))
    assert turned.ring_depths.tolist() == [0, 1] and turned.rings_taken.tolist() == [1, 0]


def test_states_without_rings_have_none() -> None:
    (batch,) = planned(step(row(0, 5)), recurrent_state=True)
    assert not len(batch.ring_depths) and not len(batch.ring_left)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"recurrent_state": False}, "needs recurrent_state, and modes=.*; got False"),
        ({"state_track_interval": 4}, "with state_track_interval=0 or .*; got True"),
        ({"state_ring_len": 0, "state_flush_interval": 4}, "needs state_ring_len"),
    ],
)
def test_rings_that_no_engine_has_are_refused(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCase, match=said):
        planned(step(row(0, 4)), **{**RINGS, **settings})


@pytest.mark.parametrize("room", [6, 2])
def test_a_ring_of_verifies_is_a_power_of_two_with_room_for_two(room: int) -> None:
    checks = ReplayStep(mode="target_verify", rows=(row(0, 7, new_tokens=2),))
    with pytest.raises(InvalidCase, match="must be a power of 2, and room for two verifies of 2"):
        planned(checks, **{**RINGS, "state_ring_len": room, "draft_tokens": 2})


def test_linear_heads_without_a_recurrent_layer_are_refused() -> None:
    with pytest.raises(InvalidCase, match="linear_head_dim=128 needs recurrent_state"):
        planned(step(row(0, 4)), linear_head_dim=128)
