"""Runs a launch program by program in the stock interpreter's operations, with accesses checked."""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

from typing import Any

import numpy as np
import triton
from triton.runtime.errors import InterpreterError

from fuzzgraph.lanes.aliases import restoring_aliases, use_aliases
from fuzzgraph.lanes.arguments import Arguments
from fuzzgraph.lanes.bounds_check import Grid
from fuzzgraph.lanes.checked import CheckedBuilder
from fuzzgraph.lanes.journal import NoJournal
from fuzzgraph.lanes.lane_range import index_range, restoring_range, use_range
from fuzzgraph.lanes.language import defined, patched, stock_language
from fuzzgraph.lanes.language_use import using_semantic
from fuzzgraph.lanes.report import LaneReport
from fuzzgraph.lanes.semantics import CheckedSemantic


def run_one_by_one(kernel: Any, grid: Grid, arguments: Arguments, report: LaneReport) -> None:
    """All programs one after the other, by the stock interpreter's operations, checked."""
    builder = CheckedBuilder()
    builder.set_grid_dim(*grid)
    names = defined()  # before the language is replaced
    with (
        patched(stock_language()),
        restoring_aliases(),
        restoring_range(kernel),
        using_semantic(CheckedSemantic, builder),
    ):
        use_aliases(kernel.__globals__, names)
        use_range(kernel.__globals__, index_range)
        arguments.reconvert()
        memory = builder.memory = arguments.memory(kernel.__name__, grid, report)
        memory.alone = True  # programs run in their order, so there is nothing to find
        memory.journal = NoJournal()
        try:
            for x in range(grid[0]):
                for y in range(grid[1]):
                    for z in range(grid[2]):
                        builder.set_grid_idx(x, y, z)
                        number = (x * grid[1] + y) * grid[2] + z
                        memory.programs = np.array([number], np.int32)
                        kernel(**arguments.converted)
        except Exception as error:
            if triton.knobs.compilation.front_end_debugging:
                raise
            raise InterpreterError(repr(error)) from error
        finally:
            for access in memory.found:
                report.add_access(access)
