"""A device on a CPU, for tests of FuzzGraph itself: `DeviceGraphs` runs on it as on a GPU.

A capture takes down what reaches the device, whoever called it: a dispatch mode beneath the guard
sees the engine's operations as the guard calls them, and the guard's and the harness' own ones.
Nothing captured has run when the capture ends. A replay runs that list again, past all modes and
without any Python of the engine, scalars frozen, every result in the memory that the capture gave
it, as a device's private pool does.

What a device forbids raises what CUDA raises, spoils the rest of the capture, and makes its end
raise too, which leaves the capturing stream current. What is forbidden is as in `rules`: host and
device are one memory here.

Not emulated: order and overlap of streams, reuse of memory within the pool, asynchronous errors. A
capture undoes what it did to guarded memory only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.graphs.emulated_capture import Capture, DeviceReads, EmulatedGraph, Launches
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.memory.listener import Listener
from fuzzgraph.memory.mode_stack import beneath_all_modes


class EmulatedDevice:
    """A device whose memory is the CPU's.

    Raises:
        AdapterUnavailable: `memory` lies elsewhere.
    """

    name = "emulated"

    def __init__(self, memory: GuardedMemory) -> None:
        if memory.device.type != "cpu":
            raise AdapterUnavailable(
                f"the emulated device is a CPU; memory lies on {memory.device}. "
                "Use --device cpu, or --graphs device."
            )
        self._memory = memory
        self._stream = "default"
        self._capture: Capture | None = None

    def graph(self) -> EmulatedGraph:
        """See `Driver`."""
        return EmulatedGraph()

    @contextmanager
    def capturing(self, graph: EmulatedGraph, *, prepares: bool) -> Iterator[Listener]:
        """See `Driver`."""
        self.synchronize()
        before, self._stream = self._stream, "capturing"
        capture = self._capture = Capture(graph, self._memory if prepares else None)
        apart = self._memory.host_apart() if prepares else nullcontext()
        reads = DeviceReads(capture)
        try:
            undone = _undone(self._memory, but_the_hosts=prepares)
            with undone, beneath_all_modes(capture), reads, apart:
                yield Launches(graph)
        finally:
            self._capture = None
            capture.end()
            self._stream = before

    def current_stream(self) -> str:
        """See `Driver`."""
        return self._stream

    def set_stream(self, stream: str) -> None:
        """See `Driver`."""
        self._stream = stream

    @contextmanager
    def on_capturing_stream(self) -> Iterator[None]:
        """See `Driver`."""
        before, self._stream = self._stream, "capturing"
        try:
            yield
        finally:
            self._stream = before

    def held(self) -> AbstractContextManager[None]:
        """See `Driver`; work is done when it is given, see `late_stream`."""
        return nullcontext()

    def synchronize(self) -> None:
        """See `Driver`."""
        if self._capture is not None:
            self._capture.refuse()


@contextmanager
def _undone(memory: GuardedMemory, *, but_the_hosts: bool) -> Iterator[None]:
    """Around a capture: what it did to guarded memory is undone, since a device only takes it down.

    Args:
        but_the_hosts: whether memory of the host stays as it is, which works on meanwhile.
    """
    with memory.unguarded():
        held = [(part, part.clone()) for part in _parts_in_use(memory)]
    try:
        yield
    finally:
        with memory.unguarded():
            if but_the_hosts:
                held += [(each, each.clone()) for each in memory.host_payloads()]
            for part, content in held:
                part.copy_(content)


def _parts_in_use(memory: GuardedMemory) -> list[torch.Tensor]:
    """The bytes of the engine's buffers and of the graph pool, as far as they are handed out."""
    arena = memory.arena
    engine = [region.end for region in memory.regions if region.segment == "engine"]
    top = max(engine, default=arena.front)
    return [arena.bytes[arena.front : top], arena.bytes[arena.graph_front : memory.graph_top]]
