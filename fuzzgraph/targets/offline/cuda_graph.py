"""Stands in for `torch.cuda.CUDAGraph` where the engine begins and ends captures by itself.

A prefill graph is broken at attention: the engine captures what lies between the breaks as graphs
of their own, and runs the breaks anew at every replay. Which pieces there are and in which order
they run stays the engine's; each piece is recorded by a `GraphEngine`.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from fuzzgraph.ports import CapturedGraph, GraphEngine

__all__ = ["SegmentGraph", "Segments"]


class Segments:
    """Makes the pieces of one runner's graphs.

    Args:
        graphs: captures and replays.
        kind: names the graphs.
    """

    def __init__(self, graphs: GraphEngine, kind: str) -> None:
        self._graphs = graphs
        self._kind = kind
        self._size = self._pieces = 0

    def begin_forward(self, size: int) -> None:
        """The next piece is the first one of the forward over this many tokens."""
        self._size, self._pieces = size, 0

    def graph(self, *_: object, **__: object) -> SegmentGraph:
        """In place of the constructor of a device's graph."""
        return SegmentGraph(self._next)

    @contextlib.contextmanager
    def record(self) -> Iterator[CapturedGraph[None]]:
        """What runs meanwhile becomes the next piece."""
        with self._next() as captured:
            yield captured

    def _next(self) -> contextlib.AbstractContextManager[CapturedGraph[None]]:
        self._pieces += 1
        key = f"{self._kind}/{self._size}.{self._pieces}"
        return self._graphs.segment(key=key, continues=self._pieces > 1)


class SegmentGraph:
    """One piece: captured from `capture_begin` to `capture_end`, replayed as often as asked."""

    def __init__(
        self, open_piece: Callable[[], contextlib.AbstractContextManager[CapturedGraph[None]]]
    ) -> None:
        self._open_piece = open_piece
        self._capturing = contextlib.ExitStack()
        self._captured: CapturedGraph[None] | None = None

    def capture_begin(self, *_: object, **__: object) -> None:
        self._captured = self._capturing.enter_context(self._open_piece())

    def capture_end(self) -> None:
        self._capturing.close()

    def instantiate(self) -> None:
        """The engine makes a captured graph ready; ours is."""

    def replay(self) -> None:
        assert self._captured is not None, "the engine replays what it captured"
        self._captured.replay()
