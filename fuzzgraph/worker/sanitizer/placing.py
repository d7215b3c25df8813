"""Where an error of a kernel happened: in which stage, which guarded buffer, and whose code."""

from __future__ import annotations

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

import fuzzgraph
from fuzzgraph.accesses import KernelError
from fuzzgraph.finding import Stage
from fuzzgraph.text.escaping import one_line
from fuzzgraph.text.numbers import counted
from fuzzgraph.worker.sanitizer.one_case import Guarded, Mark, Ran
from fuzzgraph.worker.sanitizer.report import Reported

_HERE = str(Path(fuzzgraph.__file__).absolute().parent) + os.sep
# Kernels of the built-in engine are an engine's, wherever its package lies.
_BUILTIN = os.path.join(_HERE, "targets", "builtin") + os.sep


@dataclass(frozen=True, slots=True)
class Placed:
    """One error with all that is known of it."""

    error: KernelError
    step: int
    """-1 before the first one, or where it is unknown."""
    stage: Stage
    """The last one of the engine by whose end the tool had reported it."""
    ours: bool
    """Whether it happened in FuzzGraph's own work, which says nothing about the engine."""


def placed(reported: Reported, ran: Ran | None) -> Placed:
    """An error in the memory and the stages of the process that it happened in.

    Args:
        ran: None where the process ended before it could tell.
    """
    mark, told = _mark(reported.at, ran.marks if ran else ())
    return Placed(
        error=_in_memory(reported, ran) if ran else reported.error,
        step=mark.step,
        stage=mark.stage,
        ours=_is_ours(reported, told),
    )


_UNKNOWN = Mark(stage="open", step=-1, reported=0)


def _mark(at: int, marks: Sequence[Mark]) -> tuple[Mark, Mark | None]:
    """The engine's last stage that was entered before the report came so far; and the stage, maybe
    one of our own work, of which it is certain that it had ended by then: None for none."""
    before = [mark for mark in marks if mark.reported <= at]
    engine = [mark for mark in before if mark.stage != "check"]
    ended = len(before) < len(marks)
    return (engine or [_UNKNOWN])[-1], before[-1] if before and ended else None


def _is_ours(reported: Reported, told: Mark | None) -> bool:
    """By the file of the kernel, where the report has it. A kernel without one, such as torch's, is
    ours if it ran in our own work between two stages of the engine."""
    if reported.path:
        return reported.path.startswith(_HERE) and not reported.path.startswith(_BUILTIN)
    return not reported.error.called_from and told is not None and told.stage == "check"


def _in_memory(reported: Reported, ran: Ran) -> KernelError:
    address, error = reported.address, reported.error
    if address is None or not ran.capacity:
        return error
    offset = address - ran.address
    if 0 <= offset < ran.capacity:
        found = _holder(ran.guarded, offset)
        place = _within(found, offset) if found else "in guarded memory that no buffer has"
    elif reported.nearest is not None and 0 <= reported.nearest - ran.address < ran.capacity:
        found, place = None, "outside of all guarded memory"
    else:
        return error
    buffer = one_line(found.name) if found else ""
    return msgspec.structs.replace(error, place=place, buffer=buffer)


def _holder(guarded: Iterable[Guarded], offset: int) -> Guarded | None:
    """The buffer that has this byte, in itself or in a red zone."""
    for one in guarded:
        if one.offset - one.before <= offset < one.offset + one.nbytes + one.after:
            return one
    return None


def _within(one: Guarded, offset: int) -> str:
    name, at = one_line(one.name), offset - one.offset
    length = counted(one.nbytes // one.itemsize, "element")
    line = f", allocated at {one_line(one.allocated_at)}" if one.allocated_at else ""
    whole = f"{name} ({length}{line})"
    if at < 0:
        return f"in the red zone before {whole}, {counted(-at, 'byte')} before its start"
    if at >= one.nbytes:
        return f"in the red zone behind {whole}, {counted(at - one.nbytes, 'byte')} past its end"
    return f"in {whole}, at element {at // one.itemsize}"
