"""Chunked attention in drawn cases."""

from __future__ import annotations

from typing import Any

import pytest

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case, EngineConfig, ReplayStep, validate
from fuzzgraph.errors import InvalidCase
from fuzzgraph.strategies import DEFAULT, cases, draw
from fuzzgraph.strategies.boundaries import seq_lens

CAN = Capabilities(page_sizes=(1, 2, 16), attention_chunks=True, max_context_len=64)


def drawn(can: Capabilities, count: int = 200) -> list[Case]:
    found: list[Case] = []
    draw(cases(can, DEFAULT.at(3)), 3, count, found.append)
    return found


def test_most_configs_have_chunks_of_whole_pages() -> None:
    sizes = [(case.config.attention_chunk_size, case.config.page_size) for case in drawn(CAN)]
    assert sum(chunk > 0 for chunk, _ in sizes) > len(sizes) // 2
    assert all(chunk % page == 0 for chunk, page in sizes)


def test_rows_end_a_chunk_and_begin_one_behind_another() -> None:
    rows = [
        (row.seq_len, case.config.attention_chunk_size)
        for case in drawn(CAN)
        for step in case.steps
        for row in step.rows
        if case.config.attention_chunk_size > 1
    ]
    assert sum(length > chunk and length % chunk == 0 for length, chunk in rows) > 20
    assert sum(length > chunk and length % chunk == 1 for length, chunk in rows) > 20


def test_lengths_worth_trying_lie_at_the_end_of_each_chunk() -> None:
    config = EngineConfig(attention_chunk_size=8, max_context_len=32)
    assert {8, 9, 16, 17, 24, 25, 32} <= set(seq_lens(config, "decode", 1))


def test_of_many_chunks_the_first_and_the_last_are_tried() -> None:
    lengths = seq_lens(EngineConfig(attention_chunk_size=2, max_context_len=4097), "decode", 1)
    assert {2, 3, 4, 5, 4096, 4097} <= set(lengths)
    assert len(lengths) < 60


def test_a_target_without_them_gets_none() -> None:
    cases_without = drawn(CAN.replace(attention_chunks=False), 60)
    assert all(case.config.attention_chunk_size == 0 for case in cases_without)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"attention_chunk_size": 3, "page_size": 2}, "must be whole pages of 2 tokens"),
        ({"attention_chunk_size": 4, "sliding_window": 2}, "another bound than that of sliding_w"),
        ({"attention_chunk_size": 4, "swa_window": 2}, "another bound than that of swa_window"),
        ({"attention_chunk_size": -1}, "must lie in 0..131072"),
    ],
)
def test_chunks_that_no_model_has_are_refused(settings: dict[str, Any], said: str) -> None:
    config = EngineConfig(**settings)
    with pytest.raises(InvalidCase, match=said):
        validate(Case(schema_version=1, config=config, steps=(ReplayStep(),)))
