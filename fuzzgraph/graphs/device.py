"""Captures and replays on a GPU with `torch.cuda.CUDAGraph`: CUDA on NVIDIA, HIP on ROCm.

There is one graph per captured size and one memory pool for all of them, as in engines. Guarded
memory stays active during the capture: results of operations are copied into views of the arena,
and these copies and the poison of `empty` results are captured like any other kernel. A replay
therefore writes the same arena addresses each time, red zones lie around every intermediate, and
the device allocator serves short-lived results only. Copies within the arena stay on the capturing
stream, so they may be captured; they cost one extra kernel per operation.

Only allocations on the guard's device are guarded; pinned host memory belongs to the engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

import torch

from fuzzgraph.errors import AdapterUnavailable, CaptureError
from fuzzgraph.graphs.engagement import WatchedEngine, WatchedForward, WatchedGraph
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.relays import relay

Outputs = TypeVar("Outputs")


class DeviceGraphs(WatchedEngine):
    """A graph engine on a GPU."""

    name = "device"

    def __init__(self, memory: GuardedMemory) -> None:
        if not torch.cuda.is_available() or memory.device.type != "cuda":
            raise AdapterUnavailable(
                f"device graphs need a CUDA or ROCm device; memory lies on {memory.device}, "
                f"torch.cuda.is_available() is {torch.cuda.is_available()}. "
                "Use the recorder, or a machine with a GPU."
            )
        super().__init__(memory)
        self._pool = torch.cuda.graph_pool_handle()

    @relay
    def capture(self, forward: Callable[[], Outputs], *, key: str) -> DeviceGraph[Outputs]:
        """Capture one run of `forward` after a warm-up run on a side stream.

        Raises:
            CaptureError: the device refused the capture; carries its message.
        """
        watched = WatchedForward(forward)
        self._warm_up(watched)
        graph = torch.cuda.CUDAGraph()
        with (
            _refusals(key),
            self.memory.intercept("graph"),
            torch.cuda.graph(graph, pool=self._pool),
        ):
            outputs = watched()
        captured = DeviceGraph(key, self, graph, watched, outputs)
        self._graphs.append(captured)
        return captured

    @contextmanager
    def segment(
        self, *, key: str, continues: bool = False, prepares: bool = False
    ) -> Iterator[DeviceGraph[None]]:
        """Capture what runs inside; the engine has warmed it up.

        Raises:
            CaptureError: the device refused the capture; carries its message.
        """
        graph, nothing = torch.cuda.CUDAGraph(), WatchedForward.nothing()
        captured = DeviceGraph(key, self, graph, nothing, None, continues=continues)
        with (
            _refusals(key),
            self.memory.intercept("graph"),
            torch.cuda.graph(graph, pool=self._pool),
        ):
            yield captured
        self._graphs.append(captured)

    @relay
    def _warm_up(self, forward: Callable[[], Any]) -> None:
        """One run outside the graph, so that libraries create their workspaces before it."""
        # On a side stream, as torch asks: work on the default stream could overlap the capture's.
        stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]
        stream.wait_stream(torch.cuda.current_stream(self.device))
        with torch.cuda.stream(stream), self.memory.intercept("scratch"):
            forward()
        torch.cuda.current_stream(self.device).wait_stream(stream)


@contextmanager
def _refusals(key: str) -> Iterator[None]:
    """Turn the device's refusal of a capture into a `CaptureError`."""
    try:
        yield
    except RuntimeError as error:
        # Further lines are torch's general advice on debugging CUDA.
        message = str(error).partition("\n")[0]
        raise CaptureError(
            f"The device refused to capture graph {key!r}: {message}. "
            "Move what it names to prepare_replay, before the graph."
        ) from error


class DeviceGraph(WatchedGraph[Outputs]):
    """A captured device graph."""

    def __init__(
        self,
        key: str,
        graphs: DeviceGraphs,
        graph: torch.cuda.CUDAGraph,
        watched: WatchedForward[Outputs],
        outputs: Outputs,
        *,
        continues: bool = False,
    ) -> None:
        super().__init__(key, graphs.memory, graphs.replayed, watched, outputs, continues=continues)
        self._graph = graph

    @relay
    def _run(self) -> None:
        self._graph.replay()
        # Red zones are read next, and an error of the device has to show up at this step.
        torch.cuda.synchronize(self._memory.device)

    def close(self) -> None:
        super().close()
        self._graph.reset()
