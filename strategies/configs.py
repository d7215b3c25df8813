"""Engine configs by number: each number switches a random subset of features on, most off.

Swarm testing: with all features on in every case, some combinations never occur, because one
feature hides another. A config follows from its number, the capabilities and the profile alone.
Each feature can be dropped again by itself, or held to small numbers, and what is drawn beside them
can be dropped (`kept`): that is how Hypothesis' shrinker reaches simple configs.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS, EngineConfig
from fuzzgraph.splitmix import Chance
from fuzzgraph.strategies.coherence import coherent
from fuzzgraph.strategies.config_features import FEATURES, Fields, Pins, base_fields
from fuzzgraph.strategies.draws import Draws, is_turn
from fuzzgraph.strategies.profile import Profile
from fuzzgraph.strategies.served_shapes import serve
from fuzzgraph.strategies.wide_batches import widen_batch

Supports = Callable[[EngineConfig], bool]
KEPT = 255
"""A feature is kept as it was drawn; 0 drops it, and a small number bounds what it sets."""
DROPPABLE = len(FEATURES) + 1
"""What can be dropped of a config by itself: each feature, and what is drawn to make them agree."""
ALL_KEPT = (KEPT,) * DROPPABLE

_SIZES = frozenset({"capture_bs", "req_pool_size", "max_context_len"})
"""What a wide batch sets, unless a test holds one of them."""


def _build(
    can: Capabilities, profile: Profile, number: int, kept: Sequence[int], pins: Pins
) -> EngineConfig:
    fields = base_fields(can, profile)
    fields |= {name: values[0] for name, values in pins}
    # Percent of the 16 features that follow the density: most configs have one to three, a fifth
    # about six, so that neither a bug that needs several nor one that another hides is missed.
    # 99 is no feature's number, so these draws are independent of all others.
    density = Chance(number, 99).pick((6, 12, 12, 20, 35))
    *of_features, of_draws = kept
    for feature, keep in zip(FEATURES, of_features, strict=True):
        chance = Chance(number, feature.number)
        salt, share = feature.number, feature.share
        on = is_turn(number, salt, share) if share else chance.percent(density)
        if number and on and keep:
            before = dict(fields)
            feature.vary(fields, can, profile, chance)
            if keep != KEPT:
                _limit(fields, before, can, keep)
            for name, values in pins:
                if fields[name] not in values:
                    fields[name] = chance.pick(values)
    served = bool(profile.served and number and of_draws)
    if served:
        serve(fields, can, number, pins)
    elif number and not _SIZES.intersection(name for name, _ in pins):
        widen_batch(fields, can, number)
    return coherent(fields, can, Draws(number if of_draws else 0), pins, served=served)


def _limit(fields: Fields, before: Fields, can: Capabilities, most: int) -> None:
    """Hold the numbers that a feature has set to `most` above their least values.

    Of the modes a single one is left, of captured sizes too where they are larger.
    """
    for name, row in DIMENSIONS.items():
        value = fields[name]
        if value == before[name]:
            continue
        if name == "modes":  # one of them; which one is for the shrinker to choose
            fields[name] = (value[(most - 1) % len(value)],)
        elif name in ("capture_bs", "capture_tokens"):
            fields[name] = value if value[-1] <= most else (most,)
        elif name == "page_size":  # a target need not have any other than those it lists
            fields[name] = max((s for s in can.page_sizes if s <= 1 + most), default=value)
        elif row.number:
            fields[name] = min(value, row.least + most)


@lru_cache(maxsize=512)
def swarm_config(
    can: Capabilities,
    profile: Profile,
    number: int,
    kept: tuple[int, ...] = ALL_KEPT,
    supports: Supports | None = None,
    pins: Pins = (),
) -> EngineConfig:
    """The config with this number; 0 is the simplest one, the same in every epoch.

    Where the target does not support it, features and what is drawn beside them are dropped until
    it does, the last features first; the simplest config is taken to be supported.
    """
    config = _build(can, profile, number, kept, pins)
    if supports is None or supports(config):
        return config
    draws = len(FEATURES)
    for place in (*reversed(range(draws)), draws):
        without = (*kept[:place], 0, *kept[place + 1 :])
        simpler = _build(can, profile, number, without, pins)
        if simpler != config and supports(simpler):
            return simpler
    for place in reversed(range(DROPPABLE)):
        kept = (*kept[:place], *(0 for _ in range(place, DROPPABLE)))
        config = _build(can, profile, number, kept, pins)
        if supports(config):
            break
    return config


def base_config(can: Capabilities, profile: Profile) -> EngineConfig:
    """The simplest config that the target can express."""
    return swarm_config(can, profile, 0)
