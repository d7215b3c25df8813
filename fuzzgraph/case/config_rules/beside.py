"""Which fields of a config are beside others: not at their defaults."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

from fuzzgraph.case.engine_config import DIMENSIONS, EngineConfig


def set_among(config: EngineConfig | Mapping[str, Any], names: Iterable[str]) -> list[str]:
    """Those of the fields that are not at their defaults, in the order of the names.

    Args:
        config: a config, or the fields of one that is put together.
    """
    value = config.__getitem__ if isinstance(config, Mapping) else partial(getattr, config)
    return [name for name in names if value(name) != DIMENSIONS[name].default]


def also(config: EngineConfig, names: Iterable[str]) -> str:
    """How a refusal goes on with these fields: ", name=value" for each."""
    return "".join(f", {name}={getattr(config, name)!r}" for name in names)
