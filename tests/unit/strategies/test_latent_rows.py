"""Widths of latent rows, in drawn configs."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.strategies.configs import swarm_config
from fuzzgraph.strategies.profile import DEFAULT

NUMBERS = range(200)
CAN = Capabilities(attentions=("mla",), min_rope_dim=2, max_head_dim=16)


def widths(can: Capabilities) -> list[tuple[int, int]]:
    configs = [swarm_config(can, DEFAULT, number) for number in NUMBERS]
    return [(config.head_dim, config.v_head_dim) for config in configs]


def test_a_quarter_of_latent_rows_are_no_power_of_two_wide() -> None:
    odd = [(row, value) for row, value in widths(CAN) if row & (row - 1)]
    assert len(odd) > len(NUMBERS) / 4
    assert {value & (value - 1) == 0 for _, value in odd} == {True, False}


def test_an_odd_row_leaves_the_rotary_part_that_a_target_asks_for() -> None:
    odd = {(row, value) for row, value in widths(CAN.replace(min_rope_dim=4)) if row & (row - 1)}
    assert odd == {(12, 8), (14, 10)}
    assert not any(row & (row - 1) for row, _ in widths(CAN.replace(min_rope_dim=5)))


def test_rows_that_are_all_value_and_heads_of_their_own_keep_their_widths() -> None:
    for can in (CAN.replace(min_rope_dim=0), CAN.replace(attentions=("mha",))):
        assert not any(row & (row - 1) for row, _ in widths(can))
