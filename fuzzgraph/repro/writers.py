"""Who wrote a piece of memory last: the operations of a recording, in order, and what each wrote.

Torch says what an operation writes. Of a kernel's launch nobody does: it counts as the writer of
those arguments whose content it changed, so one that writes what was there already goes unseen.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import torch

from fuzzgraph.graphs import RecordedOp
from fuzzgraph.memory.operator_facts import facts_of, tensors_in
from fuzzgraph.memory.source_lines import sources_here
from fuzzgraph.repro.origin import is_of_all_memory, overlap, touches, written_by
from fuzzgraph.repro.trace import Watcher
from fuzzgraph.rules.comparison import same_bits

_COMPARED = 16 << 20
"""Bytes of an argument up to which it is looked at whether a launch changed it."""


@dataclass(slots=True)
class Write:
    """One operation or launch, and the memory that it wrote."""

    op: RecordedOp
    memory: list[torch.Tensor]


@dataclass(slots=True)
class Writers(Watcher):
    """Keeps all that was run; `watch` also finds writes that no argument tells of."""

    writes: list[Write] = field(default_factory=list)
    callers: dict[RecordedOp, tuple[str, ...]] = field(default_factory=dict)
    """Operation -> the engine's lines that called it, the nearest first."""
    changed_by: RecordedOp | None = None
    """The last one after which the watched bytes were others than before."""
    _look: Callable[[], torch.Tensor] | None = None
    _then: torch.Tensor | None = None
    _callers_of_line: dict[str, tuple[str, ...]] = field(default_factory=dict)
    """Of a line when Python ran it last: a replay runs its operations without any."""
    _before: list[tuple[torch.Tensor, torch.Tensor]] = field(default_factory=list)

    def watch(self, look: Callable[[], torch.Tensor]) -> None:
        """From now on compare what `look` gives after each operation."""
        self._look, self._then = look, look().clone()

    def before(self, op: RecordedOp) -> None:
        if op.kind != "operation":
            self._before = [(one, one.clone()) for one in _arguments(op) if one.nbytes <= _COMPARED]

    def after(self, op: RecordedOp) -> None:
        line, *callers = sources_here() or ("",)
        if line == op.source:
            self._callers_of_line[line] = tuple(callers)
        self.callers[op] = self._callers_of_line.get(op.source, ())
        with torch._C._DisableTorchDispatch(), torch._C.DisableTorchFunction():
            if op.kind == "operation":
                memory = _written(op)
            else:
                memory = [one for one, then in self._before if not same_bits(one, then)]
                self._before = []
            self.writes.append(Write(op, memory))
            if self._look is not None and self._then is not None:
                now = self._look()
                if not same_bits(now, self._then):
                    self.changed_by, self._then = op, now.clone()

    @property
    def wrote_anywhere(self) -> bool:
        """Whether something was written through a view of all memory: nobody knows where."""
        return any(is_of_all_memory(one) for write in self.writes for one in write.memory)

    def of(self, memory: torch.Tensor) -> list[RecordedOp]:
        """The operations that wrote to some of this memory, in order."""
        return [
            write.op for write in self.writes if any(overlap(one, memory) for one in write.memory)
        ]

    def allocation(self, memory: torch.Tensor, line: str) -> RecordedOp | None:
        """The operation by which a line made this memory; None if none was seen."""
        for op in self.callers:
            if op.source == line and any(touches(one, memory) for one in op.outputs):
                return op
        return None

    def last_launch(self, chosen: Callable[[RecordedOp], bool]) -> RecordedOp | None:
        """The last launch that is meant; None if there was none."""
        for write in reversed(self.writes):
            if write.op.kind != "operation" and chosen(write.op):
                return write.op
        return None


def _arguments(op: RecordedOp) -> list[torch.Tensor]:
    return tensors_in([*op.args, *op.kwargs.values()])


def _written(op: RecordedOp) -> list[torch.Tensor]:
    """What an operation wrote: its own memory, unless its result is a view or has no content."""
    facts = facts_of(op.func)
    if facts.writes:
        return written_by(op)
    if facts.is_empty:
        return []
    if all(one.alias_info is None for one in op.func._schema.returns):
        return list(op.outputs)
    given = _arguments(op)  # a view, or a copy of it, e.g. by `reshape`
    return [one for one in op.outputs if not any(touches(one, other) for other in given)]
