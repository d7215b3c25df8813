"""Coverage of dimension pairs, gathered into families of values that fit on a page.

A family is a dimension such as the page size; its values exclude each other in one case or do
not, so a family is not paired with itself. A pair of values that the run has seen apart and never
together is an open one.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product

from fuzzgraph.coverage import Coverage

__all__ = ["Crossing", "crossings", "families_of"]

_PREFIXES = (
    ("mode", ("mode ",)),
    ("graph or eager", ("via ",)),
    ("page size", ("page_size=",)),
    ("page map", ("page map ", "page order ", "shared prefix")),
    ("ladder", ("ladder of", "ladder with", "capture beyond", "token ladder", "above ladder",
                "no eager", "prefill far")),
    ("padding", ("raw<", "raw=", "prefill raw", "free padding", "fill value", "local count",
                 "rank without")),
    ("lengths", ("len=", "ragged", "sum of lengths", "context ends")),
    ("batch size", ("growing", "shrinking", "repeated size", "small large", "large small")),
    ("history", ("same graph", "smaller graph", "eager between", "larger eager", "idle between",
                 "modes there", "interleaved", "repeated step", "optional")),
    ("requests", ("finished", "all finished", "row reused", "added later", "continued",
                  "grown by", "length rolled", "parked")),
    ("heads", ("MHA", "MQA", "GQA", "MLA", "key and value")),
    ("dtype", ("dtype ", "kv dtype ")),
    ("kernels", ("kernels ", "runner ", "prefill runner")),
    ("metadata", ("metadata ", "split", "several splits")),
    ("speculation", ("topk ", "spec steps", "draft", "accept", "prompt as long")),
    ("features", ("window", "encoder", "recurrent", "tp ")),
)  # fmt: skip
"""Family -> how the names of its values begin (see `coverage_values`)."""


@dataclass(frozen=True, slots=True)
class Crossing:
    """Two families: how many pairs of their values were covered, and which were not."""

    first: str
    second: str
    covered: int
    possible: int
    """Pairs of values that the run has seen, together or apart."""
    open: tuple[tuple[str, str], ...]

    @property
    def share(self) -> float:
        return self.covered / self.possible if self.possible else 0.0


def families_of(coverage: Coverage) -> Mapping[str, Sequence[str]]:
    """Family -> values seen, by how many cases had them; families without any are left out."""
    found: dict[str, list[str]] = {family: [] for family, _ in _PREFIXES}
    for name in sorted(coverage.cases, key=lambda name: -coverage.cases[name]):
        for family, prefixes in _PREFIXES:
            if name.startswith(prefixes):
                found[family].append(name)
                break
    return {family: names for family, names in found.items() if names}


def crossings(coverage: Coverage) -> list[Crossing]:
    """Every two families once, in the order of `families_of`."""
    families = families_of(coverage)
    met = coverage.met()
    order = list(families)
    return [
        _crossing(first, second, families, met)
        for position, first in enumerate(order)
        for second in order[position + 1 :]
    ]


def _crossing(
    first: str,
    second: str,
    families: Mapping[str, Sequence[str]],
    met: Mapping[str, frozenset[str]],
) -> Crossing:
    pairs = list(product(families[first], families[second]))
    missing = tuple((a, b) for a, b in pairs if b not in met[a])
    return Crossing(first, second, len(pairs) - len(missing), len(pairs), missing)
