"""Which pairs of dimension values were covered, as the page's table, and which were not."""

from __future__ import annotations

from fuzzgraph.reporting.coverage_groups import Crossing, crossings, groups_of
from fuzzgraph.run.events import RunSummary


def coverage_grid(summary: RunSummary) -> list[tuple[str, list[Crossing | None]]]:
    """Rows of the pair table: family, and its crossing with each earlier one; None is empty."""
    families = list(groups_of(summary.coverage))
    found = {(one.first, one.second): one for one in crossings(summary.coverage)}
    return [
        (family, [found.get((other, family)) for other in families[: position or None][:position]])
        for position, family in enumerate(families)
    ]


def open_pairs(summary: RunSummary, shown: int = 12) -> list[tuple[str, str, list[str]]]:
    """The crossings with most pairs still open, and some of those pairs."""
    worst = sorted(crossings(summary.coverage), key=lambda one: -len(one.open))[:shown]
    return [
        (one.first, one.second, [f"{a} with {b}" for a, b in one.open[:4]])
        for one in worst
        if one.open
    ]
