"""Blocks of generated cases: how long they are, and that they end when they are told to."""

from __future__ import annotations

import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case
from fuzzgraph.layout import plan
from fuzzgraph.strategies import BLOCK, DEFAULT, block_size, cases, draw


def drawn(block: int, count: int) -> list[Case]:
    found: list[Case] = []
    draw(cases(Capabilities(), DEFAULT.at(block)), block, count, found.append)
    return found


def test_a_search_begins_with_short_blocks_and_goes_on_with_long_ones() -> None:
    sizes = [block_size(block) for block in range(12)]
    assert sizes == [100] * 10 + [BLOCK] * 2


def test_the_same_seed_draws_the_same_cases() -> None:
    assert drawn(3, 20) == drawn(3, 20) != drawn(4, 20)


def test_another_block_has_other_configs() -> None:
    first, second = ({case.config for case in drawn(block, 60)} for block in (0, 1))
    assert len(first & second) < len(first) / 2


def test_what_a_run_raises_ends_its_block() -> None:
    seen = []

    def fail(case: Case) -> None:
        seen.append(case)
        if len(seen) == 3:
            raise ValueError("enough")

    with pytest.raises(ValueError, match="enough"):
        draw(cases(Capabilities(), DEFAULT), 0, 20, fail)
    assert len(seen) == 3


@pytest.mark.parametrize("preemption", [False, True])
def test_requests_come_back_where_a_target_has_preemption(preemption: bool) -> None:
    found: list[int] = []
    can = Capabilities(modes=("decode", "idle"), preemption=preemption)

    def count(case: Case) -> None:
        found.append(sum(len(batch.resumed) for batch in plan(case)))

    draw(cases(can, DEFAULT.at(1)), 1, 60, count)
    assert sum(found) > 5 if preemption else not any(found)


@pytest.mark.parametrize("ragged", [False, True])
def test_rows_have_fewer_drafts_where_a_target_takes_them(ragged: bool) -> None:
    fewer, rejected = [], []
    can = Capabilities(modes=("target_verify",), max_draft_tokens=5, ragged_verify=ragged)

    def count(case: Case) -> None:
        for step, batch in zip(case.steps, plan(case), strict=True):
            fewer.append(any(row.new_tokens < case.config.draft_tokens for row in step.rows))
            within = batch.token_rows[1:] == batch.token_rows[:-1]
            rejected.append(bool((batch.input_ids[1:] != batch.predicted[:-1])[within].any()))

    draw(cases(can, DEFAULT.at(1)), 1, 60, count)
    assert any(fewer) == ragged
    assert sum(rejected) > 5
