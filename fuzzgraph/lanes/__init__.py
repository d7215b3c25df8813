"""Triton kernels on a CPU at fuzzing speed: all programs of a launch as lanes of one execution.

Under `lanes()` an unchanged kernel runs vectorised in Triton's interpreter and gives the same bytes
as the stock interpreter. Every access is checked against the memory it belongs to, and writes of
different programs are checked for races.
"""

from __future__ import annotations

from fuzzgraph.accesses import Access, Race
from fuzzgraph.lanes.report import LaneReport
from fuzzgraph.lanes.switch import TESTED_TRITON, Lanes, lanes

__all__ = ["TESTED_TRITON", "Access", "LaneReport", "Lanes", "Race", "lanes"]
