"""Which LoRA adapters a case has, how many, and which of them stay."""

from __future__ import annotations

from collections.abc import Iterable

from fuzzgraph.case.engine_config import EngineConfig
from fuzzgraph.case.model import ReplayStep
from fuzzgraph.splitmix import Chance

MORE_ADAPTERS = 2
"""Adapters that exist beyond those of one batch, so that some take the place of others."""


DRAFT_ADAPTER = 1
"""The adapter of a model that drafts by itself, its only one."""


_ADAPTERS = 30_000
"""Salt of what is drawn here."""


def pinned_adapters(config: EngineConfig) -> range:
    """Adapters that stay in the pool once they are there.

    Source: sglang 0.5.23 lora_manager.py, `validate_new_adapter`: with data-parallel attention it
    refuses others.

    >>> [*pinned_adapters(EngineConfig(max_loras=2, pinned_loras=1))]
    [1]
    >>> [*pinned_adapters(EngineConfig(max_loras=2, dp_size=2))]
    [1, 2]
    """
    return range(1, 1 + (config.max_loras if config.dp_size > 1 else config.pinned_loras))


def most_adapters(config: EngineConfig) -> int:
    """Adapters that requests of a case may have: they are numbered from 1 on.

    >>> most_adapters(EngineConfig(max_loras=2)), most_adapters(EngineConfig())
    (4, 0)
    """
    if config.draft_adapter:
        return DRAFT_ADAPTER
    if len(pinned_adapters(config)) == config.max_loras:  # no other one could come
        return config.max_loras
    return config.max_loras + MORE_ADAPTERS


def adapters_of(step: ReplayStep) -> frozenset[int]:
    """The adapters of a step's rows, without 0."""
    return frozenset(row.adapter for row in step.rows) - {0}


def adapters_of_others(config: EngineConfig, index: int, rank: int, rows: int) -> list[int]:
    """The adapter of each row that another data-parallel rank has in a step, 0 for none: drawn by
    step, rank and place, for a case names only how many rows there are.

    >>> adapters_of_others(EngineConfig(max_loras=2, dp_size=2), 0, 1, 6)
    [1, 0, 1, 2, 1, 0]
    """
    chance = Chance(100 * index + rank, _ADAPTERS)
    return [chance.below(most_adapters(config) + 1) for _ in range(rows)]


def room_for_adapters(config: EngineConfig, named: Iterable[int]) -> int:
    """How many more adapters a batch of these may have, beside pinned ones, which have room of
    their own; below 0 where it has too many.

    >>> config = EngineConfig(max_loras=3, pinned_loras=1)
    >>> room_for_adapters(config, {1}), room_for_adapters(config, {2, 3, 4})
    (2, -1)
    """
    pinned = pinned_adapters(config)
    return config.max_loras - len(pinned) - len({*named}.difference(pinned, (0,)))
