"""The minimiser ends in the case that a person would have written, whatever it started from."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from itertools import islice, pairwise

import pytest
from hypothesis import Phase, given, seed, settings

from fuzzgraph.capabilities import WIDEST
from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, replayed_size, validate
from fuzzgraph.layout import plan
from fuzzgraph.strategies import DEFAULT, cases, minimise, minimise_counting
from fuzzgraph.strategies.minimise import complexity
from fuzzgraph.strategies.shrink_edits import smaller


@cache
def sample() -> tuple[Case, ...]:
    found: list[Case] = []
    for epoch in range(6):

        @seed(epoch)
        @settings(max_examples=100, database=None, phases=[Phase.generate], deadline=None)
        @given(cases(WIDEST, DEFAULT.at(epoch)))
        def collect(case: Case) -> None:
            found.append(case)

        collect()
    return tuple(found)


def case_of(*sizes: tuple[int, ...], **config: object) -> Case:
    """Decode steps, one row per length, requests numbered from 0."""
    steps = tuple(
        ReplayStep(rows=tuple(BatchRow(request=i, seq_len=n) for i, n in enumerate(lengths)))
        for lengths in sizes
    )
    return Case(schema_version=1, config=EngineConfig(**config), steps=steps)  # type: ignore[arg-type]


def shrinks_with_a_row_beyond_a_page(case: Case) -> bool:
    page = case.config.page_size
    lengths = [row.seq_len for step in case.steps for row in step.rows]
    shrinks = any(len(a.rows) > len(b.rows) > 0 for a, b in pairwise(case.steps))
    return page > 1 and max(lengths, default=0) > page and shrinks


def leaves_a_stale_tail(case: Case) -> bool:
    return any(
        a.mode == b.mode
        and len(a.rows) > len(b.rows) > 0
        and replayed_size(case.config, a) == replayed_size(case.config, b) is not None
        for a, b in pairwise(case.steps)
    )


def touches_the_window_edge(case: Case) -> bool:
    window = case.config.sliding_window
    return window > 1 and any(row.seq_len == window + 1 for step in case.steps for row in step.rows)


def verifies_a_tree_at_the_context_end(case: Case) -> bool:
    wall = case.config.max_context_len - case.config.draft_tokens
    return case.config.spec_topk > 1 and any(
        row.seq_len > wall
        for step in case.steps
        if step.mode == "target_verify" and replayed_size(case.config, step)
        for row in step.rows
    )


VERIFY = Case(
    schema_version=1,
    config=EngineConfig(modes=("target_verify",), capture_bs=(1,), max_context_len=2, spec_topk=2),
    steps=(ReplayStep(mode="target_verify", rows=(BatchRow(request=0, seq_len=2, new_tokens=2),)),),
)
KNOWN: list[tuple[Callable[[Case], bool], Case]] = [
    (
        shrinks_with_a_row_beyond_a_page,
        case_of((1, 1), (3,), page_size=2, capture_bs=(1,), max_context_len=3),
    ),
    (leaves_a_stale_tail, case_of((1, 1), (1,), capture_bs=(2,), max_context_len=1)),
    (
        touches_the_window_edge,
        case_of((3,), sliding_window=2, capture_bs=(1,), max_context_len=3),
    ),
    (verifies_a_tree_at_the_context_end, VERIFY),
]
by_name = pytest.mark.parametrize(
    ("fails", "least"), KNOWN, ids=lambda v: getattr(v, "__name__", "")
)


@by_name
def test_every_start_ends_in_the_known_least_case(
    fails: Callable[[Case], bool], least: Case
) -> None:
    starts = [case for case in sample() if fails(case)][:10]
    assert len(starts) >= 5
    assert [minimise(case, fails) for case in starts] == [least] * len(starts)


@by_name
def test_a_least_case_stays_as_it_is(fails: Callable[[Case], bool], least: Case) -> None:
    assert minimise(least, fails) == least


@by_name
def test_a_search_asks_at_most_eighty_times(fails: Callable[[Case], bool], least: Case) -> None:
    for case in [case for case in sample() if fails(case)][:10]:
        found = minimise_counting(case, fails)
        assert found.calls <= 80
        assert not found.exhausted


def test_only_simpler_valid_cases_are_asked_for_and_none_twice() -> None:
    start = next(case for case in sample() if leaves_a_stale_tail(case))
    asked: list[Case] = []

    def fails(case: Case) -> bool:
        plan(validate(case))
        asked.append(case)
        return leaves_a_stale_tail(case)

    minimise(start, fails)
    assert asked and len(set(asked)) == len(asked)
    assert all(complexity(case) < complexity(start) for case in asked)


def test_the_search_stops_at_its_budget() -> None:
    start = next(case for case in sample() if shrinks_with_a_row_beyond_a_page(case))
    found = minimise_counting(start, shrinks_with_a_row_beyond_a_page, budget=5)
    assert found.calls == 5 and found.exhausted
    assert shrinks_with_a_row_beyond_a_page(found.case)


def test_a_case_that_nothing_simpler_reproduces_is_handed_back() -> None:
    start = sample()[17]
    assert minimise(start, lambda case: False) == start


def test_every_simpler_case_can_be_made_whatever_a_drawn_one_says() -> None:
    for case in sample()[::20]:
        minimise(case, lambda _: False)


def test_a_predicate_that_always_holds_leaves_one_idle_step() -> None:
    found = minimise(sample()[17], lambda case: True)
    assert [step.mode for step in found.steps] == ["idle"]


@pytest.mark.parametrize("field", ["page_order", "shared_prefix_pages", "seed"])
def test_what_the_failure_needs_of_the_case_is_kept(field: str) -> None:
    plain = getattr(case_of((1,)), field)
    start = next(case for case in sample() if getattr(case, field) != plain)
    found = minimise(start, lambda case: getattr(case, field) != plain)
    assert getattr(found, field) != plain
    assert len(found.steps) == 1


def test_many_short_requests_become_one_long_one() -> None:
    def needs_nine_tokens(case: Case) -> bool:
        return any(sum(row.seq_len for row in step.rows) > 8 for step in case.steps)

    small = minimise(case_of((2, 2, 2, 2, 2), capture_bs=(8,)), needs_nine_tokens)
    assert [[row.seq_len for row in step.rows] for step in small.steps] == [[9]]


def test_an_engine_shrinks_with_the_requests_it_serves() -> None:
    def needs_more_than_a_token_per_pool_row(case: Case) -> bool:
        rows = case.config.req_pool_size
        return any(sum(row.seq_len for row in step.rows) > rows for step in case.steps)

    small = minimise(
        case_of((2, 2, 2, 2, 1), req_pool_size=8, max_context_len=2),
        needs_more_than_a_token_per_pool_row,
    )
    assert (small.config.req_pool_size, len(small.steps[0].rows)) == (1, 1)


@pytest.mark.parametrize("number", [-3, 0, 1, 2, 4, 5, 9])
def test_candidates_for_a_number_end_and_lie_below_it(number: int) -> None:
    candidates = list(islice(smaller(number, 4), 100))
    assert len(candidates) < 100
    assert all(4 <= candidate < number for candidate in candidates)
