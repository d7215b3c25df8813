"""Stands in for `torch.cuda.CUDAGraph` and `torch.cuda.graph`: a `GraphEngine` records instead.

Engines capture in three ways: they hand a function to be captured, they wrap a block in
`torch.cuda.graph`, or they call `capture_begin` and `capture_end` and run what lies between two
pieces anew at every replay. What is captured, when and in which order stays the engine's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fuzzgraph.errors import EngineError
from fuzzgraph.ports import CapturedGraph, GraphEngine

__all__ = ["POOL", "CudaGraphs", "RecordedCudaGraph"]

POOL = "the graph engine's pool"
"""Handle of the memory pool that all graphs of a session share."""


class RecordedCudaGraph:
    """In place of a `torch.cuda.CUDAGraph`. Who captures it sets `captured`."""

    captured: CapturedGraph[Any] | None = None

    def replay(self) -> None:
        if self.captured is None:
            raise EngineError("a graph is replayed that was never captured, or was reset since")
        self.captured.replay()

    def pool(self) -> str:
        return POOL

    def instantiate(self) -> None:
        """A device makes a captured graph ready; a recording is."""

    def reset(self) -> None:
        self.captured = None


class CudaGraphs:
    """The graphs of one runner.

    Args:
        graphs: captures and replays.
        kind: names the graphs in messages.
        prepares: whether what they hold prepares a step (`GraphEngine.segment`).
        shared: whether the engine captures all of them into one pool, as graphs do that are
            replayed one at a time: their memory would add up otherwise.
    """

    def __init__(
        self, graphs: GraphEngine, kind: str, *, prepares: bool = False, shared: bool = False
    ) -> None:
        self._graphs = graphs
        self._kind = kind
        self._prepares = prepares
        self._shared = shared
        self._number = self._size = self._pieces = 0

    def names(self) -> dict[str, Any]:
        """What replaces the names of torch.cuda while the engine captures.

        `with replaced_names([torch.cuda], CudaGraphs(graphs, "decode").names()): ...`
        """
        return {"CUDAGraph": self.graph_class(), "graph": self.capture}

    @contextlib.contextmanager
    def capture(
        self, graph: RecordedCudaGraph, pool: Any = None, *_: Any, **__: Any
    ) -> Iterator[None]:
        """In place of `torch.cuda.graph(graph, pool=..., stream=...)`: one whole graph."""
        self._demand_pool(pool)
        self._number += 1
        key = f"{self._kind}/{self._number}"
        with self._graphs.segment(key=key, prepares=self._prepares) as graph.captured:
            yield

    # Forwards that are captured piece by piece

    def begin_forward(self, size: int) -> None:
        """The next piece is the first one of the forward over this many rows or tokens."""
        self._size, self._pieces = size, 0

    def graph_class(self) -> type[RecordedCudaGraph]:
        """In place of `torch.cuda.CUDAGraph`: each of its graphs is the next piece."""
        next_piece, demand_pool = self.record, self._demand_pool

        class CUDAGraph(RecordedCudaGraph):
            def __init__(self, *_: object, **__: object) -> None:
                self._capturing = contextlib.ExitStack()

            def capture_begin(self, pool: object = None, *_: object, **__: object) -> None:
                demand_pool(pool)
                self.captured = self._capturing.enter_context(next_piece())

            def capture_end(self) -> None:
                self._capturing.close()

        return CUDAGraph

    def _demand_pool(self, pool: object) -> None:
        if self._shared and pool != POOL:
            raise EngineError(
                f"a graph of the {self._kind} runner is captured into {pool!r}, not into the pool "
                "that all graphs share; memory of all sizes adds up"
            )

    def record(self) -> contextlib.AbstractContextManager[CapturedGraph[None]]:
        """What runs in the block becomes the next piece, replayed on what the last one left."""
        self._pieces += 1
        key = f"{self._kind}/{self._size}.{self._pieces}"
        return self._graphs.segment(key=key, continues=self._pieces > 1)
