"""Planted faults: which there are, how to run one, and how soon the fuzzer finds each.

The faults themselves are the built-in engine's (`targets.builtin.faults`).
"""

from __future__ import annotations

from fuzzgraph.faults.catalogue import (
    FAULTS,
    fault_named,
    healthy_twin,
    open_fault,
    setup_of,
    target_with,
)
from fuzzgraph.faults.scoring import FaultScore, HealthyScore, Score, score

__all__ = [
    "FAULTS",
    "FaultScore",
    "HealthyScore",
    "Score",
    "fault_named",
    "healthy_twin",
    "open_fault",
    "score",
    "setup_of",
    "target_with",
]
