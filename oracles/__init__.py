"""The nine judges. Each declares the runs it needs and judges what was observed.

The order is that of a report: what names the culprit most exactly comes first.
"""

from __future__ import annotations

from fuzzgraph.oracles.contract import Contract
from fuzzgraph.oracles.eager import Eager
from fuzzgraph.oracles.footprint import Footprint
from fuzzgraph.oracles.handover import Handovers
from fuzzgraph.oracles.history import History
from fuzzgraph.oracles.noninterference import NonInterference
from fuzzgraph.oracles.overlap import Overlap
from fuzzgraph.oracles.reference import Reference
from fuzzgraph.oracles.survival import Survival
from fuzzgraph.ports import Oracle

__all__ = [
    "ORACLES",
    "Contract",
    "Eager",
    "Footprint",
    "Handovers",
    "History",
    "NonInterference",
    "Overlap",
    "Reference",
    "Survival",
]

ORACLES: tuple[Oracle, ...] = (
    Survival(),
    Footprint(),
    Contract(),
    Handovers(),
    NonInterference(),
    History(),
    Overlap(),
    Eager(),
    Reference(),
)
