"""A device's stream on a CPU, on which copies from pinned memory run as late as CUDA allows.

Everything runs once when it is given, as if no copy were late, and is taken down. `repeat` puts the
device's memory back and does it all again, in the same order and with the same results' memory, but
for what late copies read: the content that pinned memory has when the host waited for the copy, or
has now if it never did. What the first run read of the host besides is kept as it was.

Work of several streams is taken to run in the order in which it was given, unless a repetition has
what one of them was given run as late as waits allow (`memory.stream_order`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch

from fuzzgraph.graphs.repeating import Step, repeat_all
from fuzzgraph.memory import GuardedMemory, Image
from fuzzgraph.memory.arena import storage_key
from fuzzgraph.memory.device_work import next_copy
from fuzzgraph.memory.mode_stack import past_modes
from fuzzgraph.memory.source_lines import innermost_source
from fuzzgraph.memory.stream_order import (
    MAIN,
    ORDER,
    Issued,
    late_order,
    running_late,
    streams_apart,
)
from fuzzgraph.relays import relay
from fuzzgraph.rules.comparison import same_bits


@dataclass(slots=True)
class LateCopy:
    """A copy from pinned memory that need not have run when the host goes on."""

    source: torch.Tensor
    line: str
    """Of the engine, that gave it."""
    at_call: torch.Tensor = field(init=False)
    """What the source held when the copy was given."""
    arrived: torch.Tensor | None = None
    """What it held when the host waited for the copy; None before."""
    number: int = field(init=False)

    def __post_init__(self) -> None:
        self.at_call = self.source.clone()
        self.number = next_copy()

    def arrive(self) -> None:
        """Run it at last."""
        if self.arrived is None:
            same = same_bits(self.source, self.at_call)
            self.arrived = self.at_call if same else self.source.clone()

    @property
    def latest(self) -> torch.Tensor:
        """What the copy reads if it runs as late as it may."""
        return self.source if self.arrived is None else self.arrived

    @property
    def rewritten(self) -> bool:
        """Whether it reads something else than when it was given."""
        return not same_bits(self.latest, self.at_call)


class LateStream:
    """Implements `memory.device_work.Stream`.

    Args:
        memory: the session's.
        before: its content when the stream was opened.
    """

    def __init__(self, memory: GuardedMemory, before: Image) -> None:
        self._memory = memory
        self._before = before
        self._steps: list[Step] = []
        self._issued: list[Issued] = []
        self.side_lines: dict[int, str] = {}
        """Stream beside the main one -> the engine's line that gave it work first."""
        self._late = False
        self.copies: list[LateCopy] = []
        """In the order in which they were given."""
        self.to_host: list[str] = []
        """Line of the engine that gave it, for each copy to the host that may arrive late."""
        self._waits = True
        # Content of memory outside the arena before it was written; and what was made since, by
        # storage. The tensors are kept, so that no other storage gets the same key.
        self._outside: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._made: dict[int, torch.Tensor] = {}

    # what is given

    @relay
    def give(self, work: Callable[[], object]) -> None:
        """See `Stream`."""
        with past_modes(), torch._C.DisableTorchFunction():
            work()
        self.take_down(work)

    def take_down(self, step: Step) -> None:
        """Add work that ran."""
        issued = ORDER.issue()
        self._steps.append(step)
        self._issued.append(issued)
        if issued.stream != MAIN and issued.stream not in self.side_lines:
            self.side_lines[issued.stream] = innermost_source() or "unknown line"

    def add_copy(self, source: torch.Tensor, line: str) -> LateCopy:
        """A copy that is given now."""
        copy = LateCopy(source.detach(), line)
        self.copies.append(copy)
        return copy

    def content(self, copy: LateCopy) -> torch.Tensor:
        """What a copy reads in the present repetition."""
        return copy.latest if self._late else copy.at_call

    def made(self, tensors: Iterable[torch.Tensor]) -> None:
        """Note memory that work of this stream made, which a repetition writes anew."""
        self._made |= {storage_key(each): each for each in tensors}

    def about_to_write(self, tensors: Iterable[torch.Tensor]) -> None:
        """Keep what these hold, if they lie outside the arena and were there before."""
        for each in tensors:
            key = storage_key(each)
            guarded = key == self._memory.arena.storage_key
            if not guarded and key not in self._made and key not in self._outside:
                whole = _whole(each)
                self._outside[key] = whole, whole.clone()

    # what the host waits for

    def copies_given(self) -> int:
        """See `Stream`."""
        # Of all streams: an event may have been recorded while another one was open.
        return self.copies[-1].number if self.copies else 0

    def wait(self, copies: int | None = None) -> None:
        """See `Stream`."""
        if not self._waits:
            return
        with past_modes(), torch._C.DisableTorchFunction():
            for copy in self.copies:
                if copies is None or copy.number <= copies:
                    copy.arrive()

    @contextmanager
    def unwaited(self) -> Iterator[None]:
        """Inside, nothing waits: for reads of the harness, which no engine makes."""
        self._waits = False
        # The harness looks when all streams are done.
        for clock in ORDER.clocks():
            ORDER.wait(ORDER.current, clock)
        try:
            yield
        finally:
            self._waits = True

    # what comes of it

    @property
    def streams_apart(self) -> list[int]:
        """Streams whose work may run later than it was given, that of graphs apart."""
        return streams_apart(self._issued) if self.side_lines else []

    def repeat(self, *, late: bool, late_stream: int | None = None) -> None:
        """Do all work again, from the memory of the beginning.

        Args:
            late: whether copies run as late as they may, or when they were given.
            late_stream: what this stream was given runs as late as it may.
        """
        self._late = late
        steps = self._steps
        order: AbstractContextManager[None] = nullcontext()
        if late_stream is not None:
            steps = [steps[at] for at in late_order(self._issued, late_stream)]
            order = running_late(late_stream)
        self._memory.restore_device(self._before)
        for place, content in self._outside.values():
            place.copy_(content)
        with order:
            repeat_all(steps)


def _whole(tensor: torch.Tensor) -> torch.Tensor:
    """The bytes of a tensor's storage."""
    made: Any = torch.empty(0, dtype=torch.uint8)
    found: torch.Tensor = made.set_(tensor.untyped_storage())
    return found
