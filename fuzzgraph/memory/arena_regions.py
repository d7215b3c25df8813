"""Tells the checks of Triton kernels which guarded region an address belongs to."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import torch

from fuzzgraph.lanes.argument_regions import Named
from fuzzgraph.memory.placement import Layout


class ArenaRegions:
    """Names the regions of an arena by address."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        # One span for the whole arena: a kernel that overruns a buffer may be followed there, since
        # what it hits is a red zone or another buffer, and both are checked.
        arena = layout.arena
        self._spans = ((arena.address, arena.address + arena.capacity),)
        self._ends: dict[int, int] = {}

    def region_at(self, address: int) -> Named | None:
        """The region whose payload or red zones hold this byte."""
        region = self._layout.region_at(address)
        if region is None:
            return None
        start = self._layout.arena.address + region.offset
        return region.name, start, start + region.nbytes

    def reach_to_the_end_of(self, rows: Iterable[torch.Tensor]) -> None:
        """From now on a view that starts where one of these does may be accessed to its end."""
        for row in rows:
            start = row.data_ptr()
            self._ends[start] = start + row.nbytes

    def end_from(self, address: int) -> int:
        """Where the row ends that starts here and is read to its end; 0 if there is none."""
        return self._ends.get(address, 0)

    def spans(self) -> Sequence[tuple[int, int]]:
        """The arena: what runs out of one buffer lands in a red zone or another buffer."""
        return self._spans
