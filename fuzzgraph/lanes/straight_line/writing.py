"""Writes a path's function, step by step."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.lanes.builder import LaneBuilder
from fuzzgraph.lanes.checked import CheckedBuilder
from fuzzgraph.lanes.playback_calls import whole
from fuzzgraph.lanes.straight_line import accesses, arithmetic, shapes
from fuzzgraph.lanes.straight_line.lines import Lines, Run
from fuzzgraph.lanes.straight_line.meaning import BINARY, CAST, REDUCE, meaning
from fuzzgraph.lanes.straight_line.results import CannotWrite, Results
from fuzzgraph.lanes.trace import Operation, Path, Trace


def straight_line(trace: Trace, path: Path) -> Run:
    """A function that carries out the steps of a path, given playback's list and the builder.

    It leaves in the list what the path's fork and other paths take.
    """
    lines = Lines()
    results = Results(trace, path, lines)
    for step in path.steps:
        results.begin(step)
        try:
            _write(results, step)
        except CannotWrite:
            _call(results, step)
    results.list_last()
    return lines.function()


def _write(results: Results, step: Operation) -> None:
    """Write a step down as a call of numpy, or of the memory."""
    if step.results is None or step.kwargs:
        raise CannotWrite
    writer = _WRITERS.get(meaning(step))
    if writer is None:
        raise CannotWrite
    writer(results, step, *step.args)


def _call(results: Results, step: Operation) -> None:
    """Call the step as any playback does."""
    if step.getter is whole:
        results.list_operands(step)
        given = "values"
    else:
        given = ", ".join(map(results.operand, step.args))
    called = results.lines.name(step.call)
    results.lines.add(f"{results.called(step)}{called}({given})")


_WRITERS: dict[Any, Callable[..., None]] = {
    BINARY: arithmetic.binary,
    CAST: arithmetic.cast,
    REDUCE: arithmetic.reduction,
    CheckedBuilder.create_addptr: arithmetic.move_pointer,
    LaneBuilder.create_get_program_id: shapes.program_id,
    LaneBuilder.create_splat: shapes.splat,
    LaneBuilder.create_broadcast: shapes.broadcast,
    LaneBuilder.create_expand_dims: shapes.expand_dims,
    CheckedBuilder.create_load: accesses.load,
    LaneBuilder.create_masked_load: accesses.masked_load,
    CheckedBuilder.create_store: accesses.store,
    LaneBuilder.create_masked_store: accesses.masked_store,
}
"""What a step comes to -> what writes it down, or raises `CannotWrite`."""
