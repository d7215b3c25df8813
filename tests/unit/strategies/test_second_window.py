"""A second layer behind a window in every config, where a target always has one."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import Case
from fuzzgraph.strategies import DEFAULT, cases, draw

CAN = Capabilities(page_sizes=(1, 2, 16), swa_window=True, swa_only=True, max_context_len=64)


def drawn(can: Capabilities, count: int = 200) -> list[Case]:
    found: list[Case] = []
    draw(cases(can, DEFAULT.at(3)), 3, count, found.append)
    return found


def test_every_config_has_a_window() -> None:
    assert all(case.config.swa_window for case in drawn(CAN))


def test_rows_lie_within_the_window_at_its_edge_and_beyond() -> None:
    beyond = [
        row.seq_len - case.config.swa_window - 1
        for case in drawn(CAN)
        for step in case.steps
        for row in step.rows
    ]
    assert min(sum(n < 0 for n in beyond), beyond.count(0), sum(n > 0 for n in beyond)) > 20


def test_most_configs_of_another_target_have_none() -> None:
    others = drawn(CAN.replace(swa_only=False))
    assert sum(case.config.swa_window > 0 for case in others) < len(others) // 2
