"""Decides where each guarded allocation lies, how wide its red zones are and what it is called.

Persistent regions (segments engine and graph) are appended and never moved, because captured
graphs hold their addresses. Scratch starts over with every eager run; the same sequence of
allocations then gets the slots prepared for the run before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.memory.arena import Arena, address_of
from fuzzgraph.memory.poison import ROW_BYTES, poison_row
from fuzzgraph.memory.regions import Region, Segment, find_region, walk_tensors
from fuzzgraph.memory.source_lines import innermost_source

# One row. Graphs have hundreds of intermediates, and all of their zones are poisoned and compared
# at each replay.
SMALL_ZONE_BYTES = 64
"""Red zone of graph and scratch intermediates, bytes."""
# Scratch slots kept for reuse, so that a long run stays flat.
_REMEMBERED = 4096


class Slot:
    """A region with the tensors prepared to hand it out, again and again where it is scratch."""

    __slots__ = ("base", "block", "element", "region")

    def __init__(self, region: Region, arena: Arena) -> None:
        self.region = region
        self.base = arena.typed(region.dtype)
        self.element = region.offset // region.dtype.itemsize
        start = region.start // ROW_BYTES
        self.block = arena.rows[start : region.end // ROW_BYTES]


class Layout:
    """All regions of one arena."""

    def __init__(
        self, arena: Arena, zone_bytes: int, tail_factor: float, tail_cap: int, world: int
    ) -> None:
        self.arena = arena
        self.world = world
        self.engine: list[Region] = []
        self.graph: list[Region] = []
        self.scratch: list[Region] = []
        self.engine_top = arena.front
        self.graph_top = arena.graph_front
        self.poisons = True
        """Whether fresh memory of the graph pool gets its poison at once."""
        # Rounded up to whole rows, so that every payload starts on a row.
        self._zone_bytes = -(-zone_bytes // ROW_BYTES) * ROW_BYTES
        self._tail_factor = tail_factor
        self._tail_cap = tail_cap
        self._scratch_top = self._scratch_peak = arena.scratch_front
        self._scratch_slots: dict[Any, Slot] = {}
        self._last_scratch: list[Slot] = []
        self._this_scratch: list[Slot] = []
        self._same_scratch = True
        self._poison: dict[tuple[torch.dtype, int], torch.Tensor] = {}

    @property
    def persistent(self) -> list[Region]:
        """Engine buffers and graph intermediates, ascending."""
        return self.engine + self.graph

    @property
    def touched(self) -> dict[Segment, int]:
        """Bytes of each part that were ever handed out; memory never handed out costs nothing."""
        arena = self.arena
        return {
            "engine": self.engine_top - arena.front,
            "graph": self.graph_top - arena.graph_front,
            "scratch": max(self._scratch_peak, self._scratch_top) - arena.scratch_front,
        }

    def forget(self) -> None:
        """Drop every region and what was prepared to hand them out again."""
        self.engine, self.graph, self.scratch = [], [], []
        self._scratch_slots, self._last_scratch, self._this_scratch = {}, [], []

    def restart_scratch(self) -> None:
        """Free what the last scratch run allocated."""
        self.scratch = []
        self._scratch_peak = max(self._scratch_peak, self._scratch_top)
        self._scratch_top = self.arena.scratch_front
        self._last_scratch, self._this_scratch = self._this_scratch, []
        self._same_scratch = True

    def slot(self, func: Any, like: torch.Tensor, segment: Segment, *, born_empty: bool) -> Slot:
        """Memory for a tensor like this one, with poisoned red zones where `poisons` says so.

        Args:
            func: the operation that allocates; recognises a repeated scratch allocation.
            like: gives dtype, shape and strides.
            born_empty: whether nothing will be copied in, so that the payload stays poison.
        """
        if segment == "scratch":
            return self._scratch_slot(func, like, born_empty)
        if segment == "graph":
            region = self._place(like, segment, born_empty, self.graph_top)
            self.graph_top = region.end
            self.graph.append(region)
        else:
            region = self._place(like, segment, born_empty, self.engine_top)
            self.engine_top = region.end
            self.engine.append(region)
        slot = Slot(region, self.arena)
        if self.poisons or segment != "graph":
            # The payload as well: one copy of whole rows is cheaper than two copies of zones.
            slot.block.copy_(self.poison_row(like.dtype, self.world))
        return slot

    def _scratch_slot(self, func: Any, like: torch.Tensor, born_empty: bool) -> Slot:
        # The same operation at the same place with the same result: a repeated eager run.
        key = (self._scratch_top, func, like.dtype, like.shape, like.stride())
        slot = self._scratch_slots.get(key)
        if slot is None:
            region = self._place(like, "scratch", born_empty, self._scratch_top)
            slot = Slot(region, self.arena)
            if len(self._scratch_slots) >= _REMEMBERED:
                self._scratch_slots.clear()
            self._scratch_slots[key] = slot
        self._scratch_top = slot.region.end
        if born_empty or not self._undisturbed(slot):
            slot.block.copy_(self.poison_row(like.dtype, self.world))
        self._this_scratch.append(slot)
        self.scratch.append(slot.region)
        return slot

    def _undisturbed(self, slot: Slot) -> bool:
        """Whether the last run allocated the same up to here, so that the zones are intact."""
        index = len(self._this_scratch)
        if self._same_scratch:
            last = self._last_scratch
            self._same_scratch = index < len(last) and last[index] is slot
        return self._same_scratch

    def _place(self, like: torch.Tensor, segment: Segment, born_empty: bool, start: int) -> Region:
        nbytes = extent(like) * like.dtype.itemsize
        before = after = SMALL_ZONE_BYTES
        if segment == "engine":
            before = self._zone_bytes
            after = before
            # An engine that takes pages for tokens, or the other way round, overruns an index
            # buffer by a multiple of its size: float buffers are not sized that way.
            if not like.dtype.is_floating_point:
                after = max(before, min(int(nbytes * self._tail_factor), self._tail_cap))
        offset = start + before
        # The zone behind takes up the rest of the last row, so that the next region starts on a row
        # too.
        end = -(-(offset + nbytes + after) // ROW_BYTES) * ROW_BYTES
        self.arena.claim(start, end, segment)
        where = innermost_source()
        dtype = str(like.dtype).removeprefix("torch.")
        return Region(
            name=f"{dtype} of {where}",
            segment=segment,
            dtype=like.dtype,
            shape=tuple(like.shape),
            stride=like.stride(),
            offset=offset,
            nbytes=nbytes,
            zone_before=before,
            zone_after=end - offset - nbytes,
            allocated_at=where,
            born_empty=born_empty,
        )

    def poison_row(self, dtype: torch.dtype, world: int) -> torch.Tensor:
        """64 bytes of poison on the arena's device, int64 [8]."""
        row = self._poison.get((dtype, world))
        if row is None:
            row = self._poison[dtype, world] = poison_row(dtype, world).to(self.arena.device)
        return row

    def holds(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor lies in the arena, whatever storage it names."""
        offset: int = tensor.data_ptr() - self.arena.address
        return 0 <= offset < self.arena.capacity

    def region_of(self, tensor: torch.Tensor) -> Region | None:
        """The region that a tensor points into, None if it is not guarded memory."""
        return self.region_at(address_of(tensor))

    def region_at(self, address: int) -> Region | None:
        """The region whose red zones or payload hold this byte."""
        offset = address - self.arena.address
        if not 0 <= offset < self.arena.capacity:
            return None
        if offset < self.arena.graph_front:
            return find_region(self.engine, offset)
        if offset < self.arena.scratch_front:
            return find_region(self.graph, offset)
        return find_region(self.scratch, offset)

    def name_regions(self, roots: Mapping[str, object]) -> None:
        """Call each engine buffer what the engine calls it; the shortest path wins."""
        # Walked nearest first: the first path that reaches a region is the shortest one.
        named: set[int] = set()
        for path, address in walk_tensors(roots):
            offset = address - self.arena.address
            if not 0 <= offset < self.engine_top:
                continue
            region = find_region(self.engine, offset)
            if region is not None and id(region) not in named:
                named.add(id(region))
                region.name = path


def extent(tensor: torch.Tensor) -> int:
    """Elements from the first to the last one a strided tensor can reach."""
    elements = tensor.numel()
    if not elements or tensor.is_contiguous():
        return elements
    return 1 + sum((n - 1) * s for n, s in zip(tensor.shape, tensor.stride(), strict=True))


def memory_of(tensor: torch.Tensor) -> torch.Tensor:
    """[extent] the elements that a tensor can reach in the order in which they lie."""
    return tensor.detach().as_strided((extent(tensor),), (1,))


def copy_whole(view: torch.Tensor, source: torch.Tensor) -> None:
    """Copy a tensor into one of equal strides, repeated elements (stride 0) included."""
    # `copy_` refuses a target whose elements share memory, as those of an expanded tensor do. Copy
    # the elements that exist instead of those that the shape shows.
    if 0 in view.stride() and view.numel() > 1:
        view, source = memory_of(view), memory_of(source)
    view.copy_(source)
