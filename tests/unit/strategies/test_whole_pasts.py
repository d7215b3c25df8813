"""Prompts whose keys stand for groups go on behind whole pages: drawn, in smaller cases, and else
refused."""

from __future__ import annotations

import pytest

from fuzzgraph.case import BatchRow, Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.strategies.minimise import minimise
from fuzzgraph.strategies.repair import with_config, within_pool
from fuzzgraph.targets import open_target

PAGE = 64


def drawn(count: int = 120) -> list[Case]:
    target, found = open_target("sglang-qsa-prefill"), list[Case]()
    for block in range(6):
        strategy = cases(
            target.capabilities,
            DEFAULT.at(block),
            supports=lambda config: target.unsupported(config) is None,
        )
        draw(strategy, block, count // 6, found.append)
    return found


def pasts(case: Case) -> list[int]:
    return [row.seq_len - row.new_tokens for step in case.steps for row in step.rows]


def prompt(cached: int, new: int, **settings: int) -> Case:
    config = EngineConfig(
        modes=("prefill",), capture_bs=(), capture_tokens=(8, 64), prefill_runner="breakable",
        page_size=PAGE, max_context_len=320, kv_pool_pages=40,
        **{"index_group": 4, **settings},  # type: ignore[arg-type]
    )  # fmt: skip
    row = BatchRow(request=0, seq_len=cached + new, new_tokens=new)
    steps = (ReplayStep(mode="prefill", rows=(row,)),)
    return Case(schema_version=1, config=config, steps=steps)


def test_drawn_prompts_go_on_behind_whole_pages() -> None:
    found = [past for case in drawn() for past in pasts(validate(case))]
    assert not any(past % PAGE for past in found)
    assert sum(past > 0 for past in found) > 20


def test_a_smaller_case_is_one_too() -> None:
    tried: list[Case] = []

    def fails(case: Case) -> bool:
        tried.append(validate(case))
        return case.config.index_group > 1 and max(pasts(case), default=0) > 0

    least = minimise(prompt(3 * PAGE, 21), fails)
    assert pasts(least) == [least.config.page_size]
    assert len(tried) > 5


def test_pasts_stay_whole_where_a_context_is_shorter_or_pages_are_few() -> None:
    case = prompt(3 * PAGE, 21)
    assert pasts(with_config(case, max_context_len=200)) == [2 * PAGE]
    assert not any(past % PAGE for past in pasts(within_pool(case)))


@pytest.mark.parametrize(("cached", "new"), [(60, 4), (PAGE + 4, 8)])
def test_a_prompt_within_a_page_is_refused(cached: int, new: int) -> None:
    with pytest.raises(InvalidCase, match="whole pages of 64 tokens"):
        validate(prompt(cached, new))


def test_keys_that_stand_for_themselves_have_any_past() -> None:
    assert validate(prompt(61, 4, index_group=1))
