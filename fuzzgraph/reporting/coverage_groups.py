"""Coverage of pairs of dimension values, by group, so that it fits on a page.

A group is a dimension such as the page size, or several like it; a group is not paired with itself,
since its values often exclude each other. A pair of values that the run has seen apart and never
together is an open one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from fuzzgraph.coverage_values import GROUPS, group_of
from fuzzgraph.run.coverage import Coverage


@dataclass(frozen=True, slots=True)
class Crossing:
    """Two groups: how many pairs of their values were covered, and which were not."""

    first: str
    second: str
    covered: int
    possible: int
    """Pairs of values that the run has seen, together or apart."""
    open: tuple[tuple[str, str], ...]

    @property
    def share(self) -> float:
        return self.covered / self.possible if self.possible else 0.0


def groups_of(coverage: Coverage) -> Mapping[str, Sequence[str]]:
    """Group -> values seen, by how many cases had them; groups without any are left out."""
    found: dict[str, list[str]] = {group: [] for group in GROUPS}
    for name in sorted(coverage.cases, key=lambda name: -coverage.cases[name]):
        group = group_of(name)
        if group is not None:
            found[group].append(name)
    return {group: names for group, names in found.items() if names}


def crossings(coverage: Coverage) -> list[Crossing]:
    """Every two groups once, in the order of `groups_of`."""
    groups = groups_of(coverage)
    met = coverage.met()
    order = list(groups)
    return [
        _crossing(first, second, groups, met)
        for position, first in enumerate(order)
        for second in order[position + 1 :]
    ]


def _crossing(
    first: str,
    second: str,
    groups: Mapping[str, Sequence[str]],
    met: Mapping[str, frozenset[str]],
) -> Crossing:
    pairs = list(product(groups[first], groups[second]))
    missing = tuple((a, b) for a, b in pairs if b not in met[a])
    return Crossing(first, second, len(pairs) - len(missing), len(pairs), missing)
