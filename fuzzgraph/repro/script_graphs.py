"""Graphs of a device in a script, as functions that are embedded in it.

As in `script_memory`, the names declared below are assigned by the script.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from fuzzgraph.repro.script_memory import poison, restore, save

if TYPE_CHECKING:  # the script assigns it
    UNWRITTEN: list[torch.Tensor] = []


def unwritten(buffer: torch.Tensor) -> None:
    """Memory of a graph that nobody writes: a capture must not, so each replay begins with it."""
    UNWRITTEN.append(buffer)


def as_graph(run: Callable[[], None]) -> Callable[[], None]:
    """The function as a graph of the device: captured at its first call, replayed at each."""
    graph = torch.cuda.CUDAGraph()
    of_graph: list[torch.Tensor] = []
    captured = False

    def replay() -> None:
        nonlocal captured
        if not captured:
            saved = save()
            run()  # a warm-up, in which kernels are compiled
            torch.cuda.synchronize()
            restore(saved)
            UNWRITTEN.clear()
            with torch.cuda.graph(graph, capture_error_mode="thread_local"):
                run()
            of_graph.extend(UNWRITTEN)
            captured = True
        for buffer in of_graph:
            poison(buffer)
        graph.replay()
        torch.cuda.synchronize()  # what a kernel did wrong is raised here

    return replay
