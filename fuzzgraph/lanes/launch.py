"""Runs one launch over lanes: groups of programs at once, split where their control flow diverges.

The stock interpreter runs programs one after the other. A launch in which their order mattered is
undone and run again with a single program in each group. One for which the lanes may give other
bytes is undone and left to the stock interpreter.
"""

# mypy: disable-error-code="no-untyped-call"
from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
from triton.runtime.errors import InterpreterError

from fuzzgraph.accesses import Race
from fuzzgraph.lanes.access_log import Event
from fuzzgraph.lanes.arguments import Arguments
from fuzzgraph.lanes.bounds_check import Grid, program_at
from fuzzgraph.lanes.builder import lane_builder
from fuzzgraph.lanes.divergence import (
    ActiveLanes,
    Deadlock,
    Divergence,
    LoadsNotLogged,
    Misordered,
    NotVectorizable,
    TooWide,
    Waiting,
    deciding_for,
)
from fuzzgraph.lanes.kernel_source import error_line
from fuzzgraph.lanes.language_use import LaneLanguage
from fuzzgraph.lanes.one_by_one import run_one_by_one
from fuzzgraph.lanes.polling import Polling
from fuzzgraph.lanes.races import Conflict, check_races
from fuzzgraph.lanes.recording import record
from fuzzgraph.lanes.report import LaneReport
from fuzzgraph.lanes.straight_line import straight_line
from fuzzgraph.lanes.traces import trace_of

Programs = npt.NDArray[np.int32]

MOST_LANES = 4096
# Elements of an intermediate over all lanes of a group. More lanes save Python calls, but arrays
# that fit into a processor's cache are faster: 2 MiB of float32.
MOST_ELEMENTS = 1 << 19

_DEADLOCK = "programs wait for what others leave, and none of them goes on"

# Characters of an exception's message that a reason quotes.
_LONGEST_REASON = 160

# Lanes that fit, by kernel and constants, where fewer than `MOST_LANES` do. Learned, so that a
# later launch starts with groups that fit.
_WIDTHS: dict[Any, int] = {}


# A device divides zero by zero without a word, and so do masked lanes here all the time.
@np.errstate(all="ignore")
def run_launch(executor: Any, arguments: Arguments, report: LaneReport) -> None:
    """Run every program of a launch.

    Raises:
        InterpreterError: the kernel raised; what earlier programs wrote stays.
    """
    report.launches += 1
    reason = ""
    with LaneLanguage(executor.fn) as language:
        grid = _grid(executor, arguments)
        if arguments.described:
            language.needed()
        arguments.convert()
        report.programs += grid[0] * grid[1] * grid[2]
        in_order = False
        # Each round learns that one more buffer needs its loads logged, or that the programs have
        # to keep their order, so the loop ends.
        while True:
            launch = _Launch(executor.fn, grid, arguments, language, report, in_order=in_order)
            try:
                launch.run()
            except LoadsNotLogged:
                launch.undo()
                continue
            except Misordered:
                launch.undo()
                in_order = True
                continue
            except NotVectorizable as error:
                launch.undo()
                reason = str(error)
            except Deadlock:
                raise InterpreterError(f"{executor.fn.__name__}: {_DEADLOCK}") from None
            except Exception as error:
                # The stock run raises again if it is the kernel's error: after the programs before
                # it have run, and with its own message.
                launch.undo()
                reason = _raised(error)
            break
    if reason:
        report.fallbacks[executor.fn.__name__, reason] += 1
        run_one_by_one(executor.fn, grid, arguments, report)


def _raised(error: Exception) -> str:
    """The exception's type, message and line, without numbers that differ between launches."""
    # Reasons are counted: an address or a size in the text would make each of them another one.
    said = re.sub(r"0x[0-9a-f]+|\d{6,}", "...", " ".join(str(error).split()))[:_LONGEST_REASON]
    return f"raised {type(error).__name__}{': ' * bool(said)}{said} at {error_line(error)}"


def _grid(executor: Any, arguments: Arguments) -> Grid:
    """The grid as three numbers; a negative size counts as 0."""
    grid = arguments.sized_by(executor.grid) if callable(executor.grid) else executor.grid
    if len(grid) > 3:
        raise AssertionError("grid must have at most 3 dimensions")
    try:
        # By `range`, as in the stock interpreter's loops: it refuses floats and empties negatives.
        x, y, z = (len(range(size)) for size in grid + (1,) * (3 - len(grid)))
    except Exception as error:
        raise InterpreterError(repr(error)) from error
    return x, y, z


class _Launch:
    """One attempt to run a launch over lanes.

    Args:
        in_order: run each program on its own, after those before it.
    """

    def __init__(
        self,
        kernel: Any,
        grid: Grid,
        arguments: Arguments,
        language: LaneLanguage,
        report: LaneReport,
        *,
        in_order: bool,
    ) -> None:
        self._kernel = kernel
        self._grid = grid
        self._arguments = arguments
        self._report = report
        self._number = grid[0] * grid[1] * grid[2]
        self._memory = arguments.memory(kernel.__name__, grid, report)
        self._in_order = in_order
        # A single program has no other to race with, and races were reported before the order was
        # asked for.
        self._memory.alone = in_order or self._number == 1
        self._language = language
        self._builder = builder = lane_builder()
        builder.set_grid_dim(*grid)
        builder.memory = self._memory
        builder.most = MOST_ELEMENTS
        self._width_key = arguments.constants_key(kernel)
        self._trace = trace_of(kernel, arguments)
        self._finished = 0
        """Groups that have come to their end."""
        self._woken_at: int | None = None
        """How many had when those that waited were run again, None where none did."""

    def run(self) -> None:
        """Run all programs, then check whether their order mattered."""
        width = 1 if self._in_order else min(self._number, _WIDTHS.get(self._width_key, MOST_LANES))
        groups = [
            np.arange(start, min(start + width, self._number), dtype=np.int32)
            for start in range(0, self._number, max(width, 1))
        ]
        self._work_off(groups)
        self._settle()

    def _work_off(self, groups: Sequence[Programs]) -> None:
        """Run all groups, each split until its lanes stay together."""
        pending, waiting = list(reversed(groups)), list[Programs]()
        while pending or waiting:
            if not pending:
                pending, waiting = self._woken(waiting), []
            group = pending.pop()
            mark = self._memory.mark()
            try:
                active_lanes = self._run_group(group, mark)
            except Waiting:
                self._memory.rollback(mark)
                lanes = self._memory.active_lanes
                asking, paused = lanes.halves()
                waiting.append(group[asking])
                parts = _parts_aside(group, lanes) + [group[paused]] * bool(paused.any())
            except Divergence as error:
                self._memory.rollback(mark)
                self._report.splits += 1
                parts = _parts(group, error.keys)
            except TooWide:
                # Where an intermediate is too large for one lane, nothing raises: see `_expand`.
                self._memory.rollback(mark)
                half = (len(group) + 1) // 2
                _WIDTHS[self._width_key] = min(half, _WIDTHS.get(self._width_key, half))
                parts = [group[:half], group[half:]]
            else:
                self._finished += 1
                self._report.splits += len(active_lanes.set_aside)
                parts = _parts_aside(group, active_lanes)
            # The stack's top is the part with the lowest program, so that parts run roughly in the
            # order of programs, and fewer launches turn out to be out of order.
            pending += sorted(parts, key=lambda part: -int(part[0]))

    def _woken(self, waiting: Sequence[Programs]) -> list[Programs]:
        """Groups whose lanes have waited, to be run again: of the latest program first, for which
        those of persistent grids wait.

        Raises:
            Deadlock: nothing has run since, that they can have waited for.
        """
        if self._finished == self._woken_at:
            raise Deadlock
        self._woken_at = self._finished
        return sorted(waiting, key=lambda group: int(group[0]))

    def _run_group(self, group: Programs, mark: Any) -> ActiveLanes:
        """Run a group from its trace, or else run the kernel; the lanes that are left."""
        self._report.runs += 1
        memory, trace, inputs = self._memory, self._trace, self._arguments.inputs
        memory.programs = group
        builder = self._builder
        builder.lanes = len(group)
        builder.polling = Polling()
        builder.ids = _ids(group.tobytes(), self._grid)
        if trace is not None and trace.usable:
            lanes = memory.active_lanes = ActiveLanes(len(group))
            try:
                with deciding_for(lanes):
                    played = trace.play(inputs, builder, straight_line)
            except Exception:
                # Run again: only the kernel itself can tell at which of its lines it raised.
                trace.raised()
                played = False
            if played:
                self._report.played += 1
                return lanes
            memory.rollback(mark)
        self._language.needed()
        lanes = memory.active_lanes = ActiveLanes(len(group))
        with deciding_for(lanes):
            if trace is None:
                self._kernel(**self._arguments.converted)
            else:
                record(trace, self._kernel, self._arguments.converted, inputs)
        return lanes

    def _settle(self) -> None:
        """Report what was found, unless the order of the lanes may have mattered."""
        events = self._memory.log.events
        verdict = check_races(events) if any(event.writes for event in events) else None
        if verdict is not None:
            self._report_races(verdict.conflicts, events)
            # Programs that wait for later ones have an order of their own: in that of the stock
            # interpreter they would wait for ever.
            if verdict.misordered and not any(event.polls for event in events):
                raise Misordered
            for sums in verdict.late_sums:
                sums.add_up()
        for access in self._memory.found:
            self._report.add_access(access)

    def _report_races(self, conflicts: Sequence[Conflict], events: Sequence[Event]) -> None:
        # Programs that look at what an atomic returned may have agreed on an order (a lock, a
        # counter), which this check does not understand.
        if any(event.used for event in events):
            return
        for conflict in conflicts:
            self._report.add_race(_race(self._kernel.__name__, self._grid, conflict))

    def undo(self) -> None:
        """Take back every store."""
        self._memory.journal.rollback()


def _parts(group: Programs, keys: npt.NDArray[Any]) -> list[Programs]:
    """The lanes of a group, split by key."""
    # Elements of a combine function are not programs: there is nothing to split by.
    if len(keys) != len(group):
        raise NotVectorizable("divergence inside a combine function")
    kinds, which = np.unique(keys, return_inverse=True)
    return [group[which == kind] for kind in range(len(kinds))]


def _parts_aside(group: Programs, lanes: ActiveLanes) -> list[Programs]:
    """Those of a group's lanes that were set aside, by what they may run with."""
    return [part for aside, keys in lanes.set_aside for part in _parts(group[aside], keys)]


@lru_cache(maxsize=4096)
def _ids(programs: bytes, grid: Grid) -> tuple[Any, Any, Any]:
    """Program ids by axis; [1] for an axis with a single program.

    Args:
        programs: int32 of the group. No operation changes an array in place.
    """
    group = np.frombuffer(programs, dtype=np.int32)
    # A single entry keeps everything that follows from it at one lane, computed once.
    rest, z = np.divmod(group, np.int32(grid[2]))
    x, y = np.divmod(rest, np.int32(grid[1]))
    return tuple(  # type: ignore[return-value]
        each if size > 1 else each[:1] for each, size in zip((x, y, z), grid, strict=True)
    )


def _race(kernel: str, grid: Grid, conflict: Conflict) -> Race:
    write, other = conflict.write, conflict.other
    view = write.view if write.view is not None else other.view
    start, itemsize = (view.start, view.itemsize) if view else (conflict.address, 1)
    one, two = (program_at(grid, number) for number in conflict.programs)
    return Race(
        kernel=kernel,
        source=write.source,
        other_source=other.source,
        kind="write and write" if other.writes else "read and write",
        buffer=view.name if view else "?",
        region=view.region if view else "",
        programs=(one, two),
        offset=(conflict.address - start) // itemsize,
        elements=conflict.places,
        same_value=conflict.same_value,
        address=conflict.address,
    )
