"""Captures and replays on a GPU with `torch.cuda.CUDAGraph`: CUDA on NVIDIA, HIP on ROCm.

There is one graph per captured size and one memory pool for all of them, as in engines. Guarded
memory stays active during the capture: results of operations are copied into views of the arena,
and these copies are captured like any other kernel. A replay therefore writes the same arena
addresses each time, red zones lie around every intermediate, and the device allocator serves
short-lived results only. The copies cost one extra kernel per operation.

Nothing is poisoned while a device captures: a replay would write that poison again, over what the
harness put there before it. The pool is poisoned behind the capture and before each replay.

Only allocations on the guard's device that go through torch's dispatcher are guarded; what compiled
code allocates below it lies in torch's own pool and is copied, so that its overruns hit no red
zone. Pinned host memory belongs to the engine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any, NoReturn, TypeVar

import torch

from fuzzgraph.errors import AdapterUnavailable, CaptureError
from fuzzgraph.graphs.engagement import WatchedEngine, WatchedForward, WatchedGraph
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.relays import relay

Outputs = TypeVar("Outputs")

# Bound here: while an engine captures, torch.cuda holds stand-ins of these names that end here.
_CUDAGraph, _capture_of = torch.cuda.CUDAGraph, torch.cuda.graph

_ERROR_MODE = "thread_local"
"""Only this thread's calls can spoil a capture, as vLLM and sglang capture: threads of theirs, or
a communicator's watchdog, may allocate meanwhile."""


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
        # Warm-ups run on the stream that captures, as libraries keep a workspace for each stream.
        self._stream = torch.cuda.Stream(self.device)  # type: ignore[no-untyped-call]

    @relay
    def capture(self, forward: Callable[[], Outputs], *, key: str) -> DeviceGraph[Outputs]:
        """Capture one run of `forward` after a warm-up run.

        Raises:
            CaptureError: the device refused the capture; carries its message.
        """
        watched = WatchedForward(forward)
        self._warm_up(watched)
        graph = _CUDAGraph()
        with self._capturing(graph, key):
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
        graph, nothing = _CUDAGraph(), WatchedForward.nothing()
        captured = DeviceGraph(key, self, graph, nothing, None, continues=continues)
        with self._capturing(graph, key):
            yield captured
        self._graphs.append(captured)

    @contextmanager
    def _capturing(self, graph: torch.cuda.CUDAGraph, key: str) -> Iterator[None]:
        """Around what is captured; its memory is poisoned behind it.

        Raises:
            CaptureError: the device refused; carries its message.
        """
        top, stream = self.memory.graph_top, torch.cuda.current_stream(self.device)
        capture = _capture_of(
            graph, pool=self._pool, stream=self._stream, capture_error_mode=_ERROR_MODE
        )
        inside: BaseException | None = None
        try:
            with self._outside(capture), self.memory.intercept("graph", poisons=False):
                try:
                    yield
                except BaseException as error:
                    inside = error
                    raise
        except BaseException as error:
            # Where the end of a capture fails, torch leaves the capturing stream current.
            torch.cuda.set_stream(stream)
            _raise_cause(error, inside, key)
        self.memory.poison_graph_pool_behind(top)

    @contextmanager
    def _outside(self, capture: AbstractContextManager[Any]) -> Iterator[None]:
        """A capture that begins and ends unguarded: what torch allocates for it, the state of its
        generators among it, belongs to the process and outlives the session."""
        with self.memory.unguarded():
            capture.__enter__()
        try:
            yield
        except BaseException:
            with self.memory.unguarded():
                capture.__exit__(*sys.exc_info())
            raise
        with self.memory.unguarded():
            capture.__exit__(None, None, None)

    @relay
    def _warm_up(self, forward: Callable[[], Any]) -> None:
        """One run outside the graph, so that libraries create their workspaces before it."""
        current = torch.cuda.current_stream(self.device)
        self._stream.wait_stream(current)
        with torch.cuda.stream(self._stream), self.memory.intercept("scratch"):
            forward()
        current.wait_stream(self._stream)


def _raise_cause(error: BaseException, inside: BaseException | None, key: str) -> NoReturn:
    """Raise what spoilt a capture: a `CaptureError` if the device refused something.

    Args:
        error: what came out of the capture. What a device forbids raises where it is done, and once
            more where the capture ends, then without a word on the cause.
        inside: what was raised inside, if anything was.
        key: names the graph.
    """
    cause = error if inside is None else inside
    refused = error is not inside or "captur" in str(cause)
    if not refused or not isinstance(cause, RuntimeError):
        raise cause
    # Further lines are torch's general advice on debugging CUDA.
    message = str(cause).partition("\n")[0]
    raise CaptureError(
        f"The device refused to capture graph {key!r}: {message}. "
        "Move what it names to prepare_replay, before the graph."
    ) from cause


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
        with self._memory.unguarded():
            self._graph.replay()
        # Red zones are read next, and an error of the device has to show up at this step.
        torch.cuda.synchronize(self._memory.device)

    def close(self) -> None:
        super().close()
        self._graph.reset()
