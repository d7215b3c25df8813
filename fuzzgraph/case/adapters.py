"""Which LoRA adapters a case has, and how many."""

from __future__ import annotations

from fuzzgraph.case.model import EngineConfig, ReplayStep

MORE_ADAPTERS = 2
"""Adapters that exist beyond those of one batch, so that some take the place of others."""


DRAFT_ADAPTER = 1
"""The adapter of a model that drafts by itself, its only one."""


def most_adapters(config: EngineConfig) -> int:
    """Adapters that requests of a case may have: they are numbered from 1 on.

    >>> most_adapters(EngineConfig(max_loras=2)), most_adapters(EngineConfig())
    (4, 0)
    """
    if config.draft_adapter:
        return DRAFT_ADAPTER
    return config.max_loras + MORE_ADAPTERS if config.max_loras else 0


def adapters_of(step: ReplayStep) -> frozenset[int]:
    """The adapters of a step's rows, without 0."""
    return frozenset(row.adapter for row in step.rows) - {0}
