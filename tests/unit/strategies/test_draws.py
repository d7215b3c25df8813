"""What is drawn while a config's features are made to agree."""

from __future__ import annotations

from collections import Counter

import pytest

from fuzzgraph.case import DIMENSIONS
from fuzzgraph.strategies.configs import ALL_KEPT, swarm_config
from fuzzgraph.strategies.draws import Draws, is_turn
from fuzzgraph.strategies.profile import DEFAULT
from fuzzgraph.targets import open_target

NUMBERS = range(1, 961)
FIELDS = ("layer_types", "safe_gate", "dp_size", "state_track_interval")


@pytest.mark.parametrize("share", [3, 20, 33, 50, 78, 100])
def test_a_share_of_consecutive_configs_have_their_turn(share: int) -> None:
    turns = sum(is_turn(number, 5, share) for number in range(100, 1100))
    assert abs(turns - 10 * share) <= 1


def test_what_twelve_percent_have_is_missing_from_few_pools() -> None:
    pools = [range(1 + DEFAULT.pool * at, 1 + DEFAULT.pool * (at + 1)) for at in range(1000)]
    without = [pool for pool in pools if not any(is_turn(number, 5, 12) for number in pool)]
    assert len(without) < len(pools) // 25


@pytest.mark.parametrize("limit", [2, 3, 7, 10])
def test_each_of_a_few_consecutive_configs_draws_another_choice(limit: int) -> None:
    for begin in range(limit, 20 * limit, limit):
        window = range(begin, begin + limit)
        drawn = [Draws(number).below("dp_size", limit) for number in window]
        assert sorted(drawn) == list(range(limit))


def test_any_two_values_of_two_fields_meet() -> None:
    drawn = map(Draws, NUMBERS)
    met = Counter((each.below("dp_size", 6), each.below("num_experts", 6)) for each in drawn)
    assert len(met) == 36
    assert min(met.values()) > len(NUMBERS) / 36 / 3


def test_two_draws_of_one_field_are_independent() -> None:
    drawn = map(Draws, NUMBERS)
    met = Counter((each.percent("safe_gate", 50), each.below("safe_gate", 4)) for each in drawn)
    assert min(met[on, number] for on in (False, True) for number in range(4)) > 80


def test_the_simplest_config_draws_first_choices_and_nothing_rare() -> None:
    draws = Draws(0)
    assert draws.pick("sampling", ("greedy", "sampled")) == "greedy"
    assert not draws.percent("safe_gate", 100)


def test_features_of_a_hybrid_model_meet_about_as_often_as_chance_has_it() -> None:
    """Sizes that every config has once decided them: what one field drew told what others did."""
    target = open_target("sglang-kda")
    can = target.capabilities
    configs = [
        swarm_config(can, DEFAULT, number, supports=lambda config: not target.unsupported(config))
        for number in NUMBERS
    ]
    on = [
        {name for name in FIELDS if getattr(c, name) != DIMENSIONS[name].default} for c in configs
    ]
    share = {name: sum(name in each for each in on) / len(on) for name in FIELDS}
    for one, other in [(a, b) for a in FIELDS for b in FIELDS if a < b]:
        met = sum({one, other} <= each for each in on)
        assert met > len(on) * share[one] * share[other] / 2, (one, other)


def test_what_is_drawn_can_be_dropped_and_leaves_the_features() -> None:
    can = open_target("sglang-kda").capabilities
    without = (*ALL_KEPT[:-1], 0)
    configs = [swarm_config(can, DEFAULT, number, without) for number in range(1, 100)]
    assert not any(config.safe_gate or config.layer_types for config in configs)
    assert len({config.capture_bs for config in configs}) > 5
