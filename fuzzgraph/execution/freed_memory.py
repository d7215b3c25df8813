"""Finds memory that recorded graphs use and that the engine has let go of.

A graph keeps addresses and no tensors: where the engine drops the last tensor of a buffer that a
graph was captured with, the next allocation may lie there. Buffers count as let go where no object
of the process but the harness's own holds a tensor in them. Graphs of a device are not asked, since
nothing tells what they use.
"""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

from fuzzgraph.graphs import RecordedGraph
from fuzzgraph.graphs.recorder import Work
from fuzzgraph.memory import Bindings, GuardedMemory, PythonStateWatch, Region
from fuzzgraph.memory.holders import may_be_free
from fuzzgraph.observation import FreedUse
from fuzzgraph.ports import CapturedGraph, GraphEngine


@dataclass(frozen=True, slots=True)
class _Binding:
    """Where an engine kept a tensor of a buffer when its graphs had been captured."""

    holder: dict[Any, Any]
    name: Any
    tensor: weakref.ReferenceType[torch.Tensor]
    region: Region

    @property
    def stands(self) -> bool:
        tensor = self.tensor()
        return tensor is not None and self.holder.get(self.name) is tensor


class FreedMemory:
    """The buffers of one session that its engine let go of: at capture, and since.

    Made just after the capture.
    """

    def __init__(self, memory: GuardedMemory, graphs: GraphEngine, watch: PythonStateWatch) -> None:
        self._memory = memory
        self._graphs = graphs
        self._first = watch.first
        self._uses: dict[int, dict[int, FreedUse]] = {}
        # Engine buffers never move. Graphs name the same few addresses again and again.
        self._buffer_at: dict[int, Region | None] = {}
        self._bindings = list(self._bound(watch))
        self._holders: dict[int, weakref.ReferenceType[torch.Tensor]] = {}
        bound = {id(each.region) for each in self._bindings}
        unbound = [region for region in self._used() if id(region) not in bound]
        self._freed = self._free_among(filter(may_be_free, unbound))

    def _bound(self, watch: PythonStateWatch) -> Iterator[_Binding]:
        for holder, name, tensor in watch.bound_tensors():
            region = self._memory.region_of(tensor)
            if region is not None and region.segment == "engine":
                yield _Binding(holder, name, weakref.ref(tensor), region)

    def used_by(
        self, replayed: Sequence[CapturedGraph[object]], before: Bindings
    ) -> list[FreedUse]:
        """What of it these graphs use, each piece once.

        Args:
            before: what the engine's attributes were bound to when the step began.
        """
        uses = {key: use for graph in replayed for key, use in self._uses_of(graph).items()}
        freed = [region for region in self._freed if id(region) in uses]
        gone = [region for region in self._unbound() if id(region) in uses]
        # The harness keeps what was bound at the capture and before the step, to put it back.
        freed += self._free_among(gone, self._first, before)
        return [uses[id(region)] for region in freed]

    def _unbound(self) -> list[Region]:
        """Buffers of which no attribute or entry of the engine holds the tensor of the capture."""
        gone = {id(each.region): each.region for each in self._bindings if not each.stands}
        if gone:
            for each in self._bindings:
                if each.stands:
                    gone.pop(id(each.region), None)
        return list(gone.values())

    def _free_among(self, suspected: Iterable[Region], *kept: Bindings) -> list[Region]:
        asked = [region for region in suspected if self._holder_of(region) is None]
        if not asked:
            return []
        containers = [each for bindings in kept for each in bindings.containers]
        held = self._memory.held(asked, ours=self._ours(), containers=containers)
        self._holders |= held
        return [region for region in asked if id(region) not in held]

    def _holder_of(self, region: Region) -> torch.Tensor | None:
        """A tensor that was found to be held there, if it still lives."""
        known = self._holders.get(id(region))
        return None if known is None else known()

    def _used(self) -> list[Region]:
        """The engine's buffers that any graph uses."""
        used = {key for graph in self._graphs.graphs for key in self._uses_of(graph)}
        return [region for region in self._memory.regions if id(region) in used]

    def _ours(self) -> set[int]:
        graphs = (graph for graph in self._graphs.graphs if isinstance(graph, RecordedGraph))
        return {id(tensor) for graph in graphs for tensor in graph.aliases()}

    def _uses_of(self, graph: CapturedGraph[object]) -> dict[int, FreedUse]:
        """By the region's `id`, the first use of it; a write goes before a read."""
        known = self._uses.get(id(graph))
        if known is None:
            found = self._found(graph) if isinstance(graph, RecordedGraph) else {}
            known = self._uses[id(graph)] = found
        return known

    def _found(self, graph: RecordedGraph[Any]) -> dict[int, FreedUse]:
        found: dict[int, FreedUse] = {}
        for work in graph.work():
            for region in self._buffers(work.read):
                if id(region) not in found:
                    found[id(region)] = _use(region, graph.key, "read", work)
            for region in self._buffers(work.written):
                if id(region) not in found or found[id(region)].kind == "read":
                    found[id(region)] = _use(region, graph.key, "write", work)
        return found

    def _buffers(self, tensors: Iterable[torch.Tensor]) -> Iterator[Region]:
        known = self._buffer_at
        for tensor in tensors:
            address = tensor.data_ptr()
            if address not in known:
                known[address] = self._buffer_of(tensor)
            region = known[address]
            if region is not None:
                yield region

    def _buffer_of(self, tensor: torch.Tensor) -> Region | None:
        region = self._memory.region_of(tensor)
        if region is None or region.segment != "engine":
            return None
        # A number of the host is a constant of the graph.
        return region if region.shape or region.side == "device" else None


def _use(region: Region, graph: str, kind: Literal["read", "write"], work: Work) -> FreedUse:
    return FreedUse(
        region=region.name,
        graph=graph,
        kind=kind,
        by=work.name,
        source=work.source,
        allocated_at=region.allocated_at,
        dtype=str(region.dtype).removeprefix("torch."),
        shape=region.shape,
    )
