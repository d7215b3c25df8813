"""Triton kernels on a CPU at fuzzing speed: all programs of a launch as lanes of one execution.

Under `lanes()` an unchanged kernel runs vectorised in Triton's interpreter, byte for byte as the
stock interpreter would run it, with every access held against the memory it belongs to and writes
between programs checked for races.
"""

from __future__ import annotations

from fuzzgraph.accesses import Access, Race
from fuzzgraph.lanes.report import LaneReport
from fuzzgraph.lanes.switch import TESTED_TRITON, Lanes, lanes

__all__ = ["TESTED_TRITON", "Access", "LaneReport", "Lanes", "Race", "lanes"]
