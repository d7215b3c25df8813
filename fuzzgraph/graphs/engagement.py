"""Proves that a replay ran the graph: no Python of the engine ran, and outputs were rewritten."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any, Generic, NoReturn, TypeVar

import torch

from fuzzgraph.errors import EngineError
from fuzzgraph.memory.device_work import give
from fuzzgraph.memory.guard import GuardedMemory
from fuzzgraph.observation import Engagement
from fuzzgraph.ports import CapturedGraph
from fuzzgraph.relays import relay

Outputs = TypeVar("Outputs")


class WatchedForward(Generic[Outputs]):
    """Calls the captured function and counts entries made while a replay runs."""

    def __init__(self, forward: Callable[[], Outputs]) -> None:
        self._forward = forward
        self.replaying = False
        self.calls_in_replay = 0

    @relay
    def __call__(self) -> Outputs:
        self.calls_in_replay += self.replaying
        return self._forward()

    @classmethod
    def nothing(cls) -> WatchedForward[None]:
        """A stand-in for work that was captured without a function."""
        return WatchedForward(lambda: None)

    def forget(self) -> None:
        """Drop the function, and with it the reference to its engine."""
        self._forward = _closed


def _closed() -> NoReturn:
    raise EngineError("a captured function was called after its graph engine was closed")


class WatchedGraph(ABC, Generic[Outputs]):
    """A captured graph that records whether its replays were real ones.

    Args:
        key: what the engine calls the graph, e.g. `decode[4]`.
        memory: the guarded memory that it was captured in.
        log: list to which every replay is appended, in order.
        watched: the captured function.
        outputs: what it returned at capture; replays rewrite it.
        continues: whether it uses what the graph replayed before it left in the shared pool.
    """

    def __init__(
        self,
        key: str,
        memory: GuardedMemory,
        log: list[CapturedGraph[object]],
        watched: WatchedForward[Outputs],
        outputs: Outputs,
        *,
        continues: bool = False,
    ) -> None:
        self.key = key
        self.outputs = outputs
        self.continues = continues
        self._memory = memory
        self._log = log
        self._watched = watched
        self._replays = 0
        self.before_replay: Callable[[], None] = _nothing
        """Called when a replay begins: what it is about to read lies ready."""

    @relay
    def replay(self) -> None:
        """Poison the shared pool, then run the captured work again and wait for its end."""
        # Another graph's replay may have overwritten the pool. Poison also shows afterwards which
        # outputs were not written. A piece that continues another needs that one's results.
        if not self.continues:
            give(self._memory.poison_graph_pool)
        self._watched.replaying = True
        self._replays += 1
        self._log.append(self)
        self.before_replay()
        try:
            give(self._run)
        finally:
            self._watched.replaying = False

    @property
    def streams_apart(self) -> Sequence[int]:
        """See `CapturedGraph`: a device has its own order, and another one tells of none."""
        return ()

    @property
    def side_lines(self) -> Sequence[str]:
        """See `CapturedGraph`."""
        return ()

    @abstractmethod
    def _run(self) -> None:
        """The captured work, without any Python of the engine."""

    def close(self) -> None:
        """Release what the graph holds; it cannot be replayed again."""
        # A runner holds its graphs and they hold the runner's forward: without this, thousands of
        # objects of each session would wait for the garbage collector.
        self._watched.forget()
        self.before_replay = _nothing

    @property
    def engaged(self) -> Engagement:
        """Whether replays ran no Python of the engine and rewrote their outputs."""
        return Engagement(
            self._replays,
            self._watched.calls_in_replay,
            unwritten_outputs(self._memory, self.outputs) if self._replays else (),
        )


def _nothing() -> None: ...


class WatchedEngine:
    """The part that all graph engines share: their graphs, and the replays in order."""

    def __init__(self, memory: GuardedMemory) -> None:
        self.memory = memory
        self.device = memory.device
        self.replayed: list[CapturedGraph[object]] = []
        self._graphs: list[WatchedGraph[Any]] = []

    @property
    def captured(self) -> int:
        """Graphs captured so far."""
        return len(self._graphs)

    @property
    def graphs(self) -> Sequence[WatchedGraph[Any]]:
        """Every graph, in the order of capture."""
        return self._graphs

    def side_of(self, tensor: torch.Tensor) -> str:
        """'host' or 'device', as the engine asked for the memory; '' where that is unknown."""
        return self.memory.side_of(tensor)

    def held(self) -> AbstractContextManager[None]:
        """See `GraphEngine`."""
        return nullcontext()

    def close(self) -> None:
        """Release what the graphs hold; on a device their memory too."""
        for graph in self._graphs:
            graph.close()
        self._graphs.clear()
        self.replayed.clear()


def tensors_of(value: Any, path: str = "output") -> list[tuple[str, torch.Tensor]]:
    """Path and tensor of everything a captured function returned."""
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, dict):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        items = [(f"{path}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()]
    return [found for name, item in items for found in tensors_of(item, name)]


def unwritten_outputs(memory: GuardedMemory, outputs: Any) -> tuple[str, ...]:
    """Paths of float outputs in the graph pool that are still poison, every byte of them."""
    # Not integers: their poison is a small number, which a real result may be too.
    asked = {
        path: tensor
        for path, tensor in tensors_of(outputs)
        if tensor.numel()
        and tensor.is_floating_point()
        and (region := memory.region_of(tensor)) is not None
        and region.segment == "graph"
    }
    poison = memory.are_poison([*asked.values()])
    return tuple(path for path, unwritten in zip(asked, poison, strict=True) if unwritten)
