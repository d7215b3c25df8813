"""What a budget of tokens does to the rows of a verify."""

from __future__ import annotations

from fuzzgraph.case.engine_config import EngineConfig

BY_TOKENS = ("compact", "verify_all")
"""Budgets by which graphs are captured by tokens."""


def cuts_rows(config: EngineConfig, rows: int) -> bool:
    """Whether the budget may leave rows of a verify of so many requests fewer than `draft_tokens`.

    A batch of more rows than any graph has is verified whole, and so is one beside a data-parallel
    rank with more (sglang 0.5.23 dspark_planner.py, schedule_layout:
    ragged_layout_exceeds_captured_grid).

    Args:
        rows: of the largest rank.

    >>> compact = EngineConfig(verify_budget="compact", capture_bs=(1, 2))
    >>> [cuts_rows(compact, rows) for rows in (2, 3)]
    [True, False]
    """
    return config.verify_budget == "compact" and rows <= max(config.capture_bs, default=0)
