"""What a budget of tokens does to cases and batches of verifies."""

from __future__ import annotations

from collections.abc import Iterable

import msgspec
import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, rank_sizes, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT, cases, draw, minimise

CAN = Capabilities(
    modes=("target_verify",),
    max_draft_tokens=4,
    max_batch=6,
    verify_budgets=("none", "cap_accept", "compact", "verify_all"),
)


def _case(rows: Iterable[tuple[int, int, int]], *more: ReplayStep, **settings: object) -> Case:
    config = EngineConfig(
        modes=("target_verify",),
        draft_tokens=4,
        max_context_len=32,
        kv_pool_pages=300,
        **settings,  # type: ignore[arg-type]
    )
    return Case(schema_version=1, config=config, steps=(_step(rows), *more))


def _step(rows: Iterable[tuple[int, int, int]]) -> ReplayStep:
    made = (BatchRow(request=name, seq_len=lens, new_tokens=new) for name, lens, new in rows)
    return ReplayStep(mode="target_verify", rows=tuple(made))


def test_a_budget_cuts_rows_of_batches_that_a_graph_holds() -> None:
    two, three = [(0, 9, 1), (1, 8, 4)], [(0, 9, 1), (1, 8, 4), (2, 7, 4)]
    validate(_case(two, capture_bs=(1, 2), verify_budget="compact"))
    with pytest.raises(InvalidCase, match="must be draft_tokens=4 with 3 rows"):
        validate(_case(three, capture_bs=(1, 2), verify_budget="compact"))


def test_beside_a_rank_that_no_graph_holds_rows_are_whole() -> None:
    settings = {"capture_bs": (1, 2), "verify_budget": "compact", "dp_size": 2}
    whole, cut = _case([(0, 9, 4)], **settings), _case([(0, 9, 3)], **settings)
    for case, others in ((whole, 3), (cut, 2)):
        validate(_beside(case, others))
    with pytest.raises(InvalidCase, match="must be draft_tokens=4 with 3 rows"):
        validate(_beside(cut, 3))


def _beside(case: Case, rows: int) -> Case:
    """The case with so many rows on another rank."""
    steps = tuple(msgspec.structs.replace(step, other_ranks=(rows,)) for step in case.steps)
    return msgspec.structs.replace(case, steps=steps)


@pytest.mark.parametrize("budget", ["cap_accept", "verify_all"])
def test_other_budgets_leave_rows_whole(budget: str) -> None:
    with pytest.raises(InvalidCase, match="does not cut them"):
        validate(_case([(0, 9, 1)], verify_budget=budget))


def test_a_budget_is_refused_where_no_server_has_it() -> None:
    with pytest.raises(InvalidCase, match="verify_budget"):
        validate(_case([(0, 9, 4)], verify_budget="compact", sampling="draft"))


def test_as_many_tokens_stay_as_the_next_step_says_and_no_more_than_the_budget_pays_for() -> None:
    rows = [(name, 12, 4) for name in range(6)]
    later = _step([(name, 12 - 4 + 2 + 4, 4) for name in range(6)])
    case = _case(rows, later, capture_bs=(8,), verify_budget="cap_accept")
    first = plan(validate(case))[0]
    assert (first.stayed_lens == first.cached_lens + 2).all()
    assert set(first.most_kept.tolist()) == {2, 3, 4}
    ends = first.new_lens.cumsum()
    predicted = first.input_ids[ends - 2] == first.predicted[ends - 3]
    assert predicted[first.most_kept == 2].all()  # the budget alone keeps them from staying
    assert not predicted[first.most_kept > 2].any()


def test_every_budget_is_drawn_and_rows_of_all_lengths() -> None:
    drawn: list[Case] = []
    for block in range(30):
        draw(cases(CAN, DEFAULT.at(block)), block, 6, drawn.append)
    assert {case.config.verify_budget for case in drawn} == set(CAN.verify_budgets)
    cut = [case for case in drawn if case.config.verify_budget == "compact"]
    lens = {row.new_tokens for case in cut for step in case.steps for row in step.rows}
    assert lens == {1, 2, 3, 4}


def test_rows_are_cut_beside_other_ranks_and_whole_beside_those_above_the_ladder() -> None:
    can, drawn = CAN.replace(max_dp_size=4), list[Case]()
    for block in range(30):
        draw(cases(can, DEFAULT.at(block)), block, 6, drawn.append)
    beside = [case for case in drawn if case.config.verify_budget == "compact"]
    beside = [case for case in beside if case.config.dp_size > 1]
    sizes = [
        (max(rank_sizes(case.config, step)) > case.config.capture_bs[-1], row.new_tokens)
        for case in beside
        for step in case.steps
        for row in step.rows
    ]
    assert {new for above, new in sizes if above} == {4}
    assert {new for above, new in sizes if not above} == {1, 2, 3, 4}


@pytest.mark.parametrize("ranks", [1, 4])
def test_every_simpler_case_of_a_drawn_one_can_be_made(ranks: int) -> None:
    drawn: list[Case] = []
    for block in range(6):
        draw(cases(CAN.replace(max_dp_size=ranks), DEFAULT.at(block)), block, 6, drawn.append)
    assert any(case.config.verify_budget == "compact" for case in drawn)
    for case in drawn:
        assert minimise(case, lambda _: False) == case
