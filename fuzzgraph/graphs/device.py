"""Captures and replays by the graphs of a device: CUDA on NVIDIA, HIP on ROCm, or an emulated one.

What is asked of the device is in `drivers`; the order of guard, capture, poison and replay is here.

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

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, suppress
from typing import Any, NoReturn, TypeVar

from fuzzgraph.errors import CaptureError
from fuzzgraph.graphs.drivers import Cuda, Driver, Graph
from fuzzgraph.graphs.engagement import WatchedEngine, WatchedForward, WatchedGraph
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.memory.source_lines import sources_of
from fuzzgraph.relays import relay

Outputs = TypeVar("Outputs")


class DeviceGraphs(WatchedEngine):
    """A graph engine on a device.

    Args:
        driver: the device; None takes the GPU that `memory` lies on.

    Raises:
        AdapterUnavailable: memory lies on no GPU.
    """

    def __init__(self, memory: GuardedMemory, driver: Driver | None = None) -> None:
        super().__init__(memory)
        self.driver: Driver = Cuda(memory) if driver is None else driver
        self.name = self.driver.name

    @relay
    def capture(self, forward: Callable[[], Outputs], *, key: str) -> DeviceGraph[Outputs]:
        """Capture one run of `forward` after a warm-up run.

        Raises:
            CaptureError: the device refused the capture; carries its message.
        """
        watched = WatchedForward(forward)
        self._warm_up(watched)
        graph = self.driver.graph()
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
        graph, nothing = self.driver.graph(), WatchedForward.nothing()
        captured = DeviceGraph(key, self, graph, nothing, None, continues=continues)
        with self._capturing(graph, key, prepares=prepares):
            yield captured
        self._graphs.append(captured)

    @contextmanager
    def _capturing(self, graph: Graph, key: str, *, prepares: bool = False) -> Iterator[None]:
        """Around what is captured; its memory is poisoned behind it.

        Raises:
            CaptureError: the device refused; carries its message.
        """
        top, stream = self.memory.graph_top, self.driver.current_stream()
        capture = self.driver.capturing(graph, prepares=prepares)
        inside: BaseException | None = None
        try:
            with capture as listener, self.memory.intercept("graph", listener, poisons=False):
                try:
                    yield
                except BaseException as error:
                    inside = error
                    raise
        except BaseException as error:
            # Where the end of a capture fails, torch leaves the capturing stream current.
            self.driver.set_stream(stream)
            # The engine may go on without this graph. A device that failed for good refuses this
            # as well: what it said first is raised.
            with suppress(RuntimeError):
                self.memory.poison_graph_pool_behind(top)
            _raise_cause(error, inside, key)
        self.memory.poison_graph_pool_behind(top)

    def held(self) -> AbstractContextManager[None]:
        """See `GraphEngine`."""
        return self.driver.held()

    @relay
    def _warm_up(self, forward: Callable[[], Any]) -> None:
        """One run outside the graph, so that libraries create their workspaces before it."""
        # Behind what the warm-ups before left: the engine may keep what it makes at its first run.
        scratch = self.memory.intercept("scratch", frees=False)
        with self.driver.on_capturing_stream(), scratch:
            forward()


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
    # A device does not say what it refused. The traceback does, and goes on with the refusal.
    line = next(iter(sources_of(cause)), "") or "unknown line"
    raise CaptureError(
        f"The device refused to capture graph {key!r}: {message}, at {line}. "
        "Move what is done there to prepare_replay, before the graph."
    ).with_traceback(cause.__traceback__) from cause


class DeviceGraph(WatchedGraph[Outputs]):
    """A captured device graph."""

    def __init__(
        self,
        key: str,
        graphs: DeviceGraphs,
        graph: Graph,
        watched: WatchedForward[Outputs],
        outputs: Outputs,
        *,
        continues: bool = False,
    ) -> None:
        super().__init__(key, graphs.memory, graphs.replayed, watched, outputs, continues=continues)
        self._graph, self._driver = graph, graphs.driver

    @relay
    def _run(self) -> None:
        with self._memory.unguarded():  # what a device writes for its generators is no engine's
            self._graph.replay()
        # Red zones are read next, and an error of the device has to show up at this step.
        self._driver.synchronize()

    def close(self) -> None:
        super().close()
        self._graph.reset()
