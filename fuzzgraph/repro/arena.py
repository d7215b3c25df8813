"""What a script calls the arena's memory: regions by their names, and views of the whole."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from fuzzgraph.graphs import RecordedGraph
from fuzzgraph.memory import Region
from fuzzgraph.memory.operator_facts import facts_of
from fuzzgraph.repro.geometry import Place, place_of, slice_text
from fuzzgraph.repro.literals import dtype_text
from fuzzgraph.repro.naming import Names
from fuzzgraph.repro.trace import Recording, tensors_of_event


class ScriptMemory:
    """The arena as the script has it: which regions it names, which views of the whole."""

    def __init__(self, recording: Recording, names: dict[int, str], pinned: set[int]) -> None:
        self.recording = recording
        self.names = names
        self.pinned = pinned
        """Graph regions that keep their place in the arena, by id."""
        self.used: dict[int, Region] = {}
        self.wide: dict[Place, tuple[str, str]] = {}
        """View of the whole arena -> (name, declaration)."""
        self._names = Names(names.values())
        self._arena = recording.memory.arena.address
        self.starts = _starts(recording)
        """Number that an address calculation adds -> the region that begins there, by id."""

    def text(self, tensor: torch.Tensor) -> str | None:
        """How the module names a tensor that lies in the arena; None outside, or unpinned."""
        place = place_of(tensor)
        offset = self.recording.offset(place.address)
        if offset is None or not tensor.numel():
            return None
        region = self.recording.memory.region_of(tensor)
        if region is not None and not self.recording.is_wide(tensor):
            if region.segment != "engine" and id(region) not in self.pinned:
                return None
            found = slice_text(self.place(region), place)
            if found is None:
                first = offset // place.dtype.itemsize
                found = f".as_strided({place.shape}, {place.stride}, {first})"
                if place.dtype != region.dtype:
                    return self._wide_text(place, offset, region)
            return self.name(region) + found
        return self._wide_text(place, offset, region)

    def place(self, region: Region) -> Place:
        return Place(self._arena + region.offset, region.shape, region.stride, region.dtype)

    def name(self, region: Region) -> str:
        """The region's name; it will be declared."""
        self.used[id(region)] = region
        return self.names[id(region)]

    def _wide_text(self, place: Place, offset: int, region: Region | None) -> str:
        if place not in self.wide:
            self.wide[place] = self._declare_wide(place, offset, region)
        return self.wide[place][0]

    def _declare_wide(self, place: Place, offset: int, region: Region | None) -> tuple[str, str]:
        kind = str(place.dtype).removeprefix("torch.")
        flat = f"MEMORY.view({dtype_text(place.dtype)})"
        start = offset // place.dtype.itemsize
        if not start and place.stride == (1,) and len(place.shape) == 1:
            return self._names.fresh(f"all_{kind}"), flat
        if region is not None and region.segment == "engine" and self._begins_in(region, offset):
            wish = f"{self.name(region)}_onwards"
        else:
            size = 1
            for length in place.shape[1:]:
                size *= length
            form = "rows" if place.stride[0] >= size else "windows"  # windows overlap
            wish = "_".join([f"all_{kind}_{form}", *map(str, place.shape[1:])])
        return (
            self._names.fresh(wish),
            f"{flat}.as_strided({place.shape}, {place.stride}, {start})",
        )

    @staticmethod
    def _begins_in(region: Region, offset: int) -> bool:
        return region.offset <= offset < region.offset + max(region.nbytes, 1)


def _starts(recording: Recording) -> dict[int, int]:
    found: dict[int, int] = {}
    for region in recording.regions():
        if region.segment != "engine":
            continue
        rows = region.dtype.itemsize * (region.stride[0] if region.stride else 1)
        for unit in {region.dtype.itemsize, rows}:
            if unit and region.offset % unit == 0 and region.offset // unit > 1000:
                found.setdefault(region.offset // unit, id(region))
    return found


def declared_names(recording: Recording) -> dict[int, str]:
    """Region id -> the name by which the engine declares the buffer."""
    found: dict[int, str] = {}
    for name, (tensor, _) in recording.opened.session.captured_addresses().items():
        region = recording.memory.region_of(tensor)
        if region is not None:
            found.setdefault(id(region), name)
    for index, plane in enumerate(recording.opened.session.pools.encoder_planes):
        region = recording.memory.region_of(plane)
        if region is not None:
            found[id(region)] = ("encoder_k_pool", "encoder_v_pool")[index]
    # Groups may share memory: it is called as the first of them calls it.
    for number, group in reversed([*enumerate(recording.opened.session.pools.groups)]):
        suffix, count = f"_of_group_{number}" if number else "", len(group.kv_planes)
        for index, plane in enumerate(group.kv_planes):
            region = recording.memory.region_of(plane)
            if region is not None:
                names = ("k_pool", "v_pool") if count == 2 else ("kv_pool",)
                name = names[index] if index < len(names) else f"kv_pool_{index}"
                found[id(region)] = name + suffix
        table = group.req_to_token
        region = None if table is None else recording.memory.region_of(table)
        if region is not None:
            found[id(region)] = f"req_to_token{suffix}"
    return found


def pinned_regions(recording: Recording, checked: Iterable[Region]) -> set[int]:
    """Graph intermediates that need their place in the arena: something else finds them there."""
    pinned = {id(region) for region in checked}
    graph_regions = {id(r): r for r in recording.regions() if r.segment == "graph"}
    for graph in recording.graphs.values():
        made: set[int] = set()
        for op in graph.trace:
            arguments, results = tensors_of_event(op)
            pinned |= _regions_of(recording, arguments) - made
            if op.replayed and op.kind == "operation" and not facts_of(op.func).writes:
                made |= _regions_of(recording, results)
    for run in recording.runs:
        for event in (*run.events, *run.looks):
            if not isinstance(event, RecordedGraph):
                arguments, results = tensors_of_event(event)
                pinned |= _regions_of(recording, [*arguments, *results])
        pinned |= _regions_of(recording, run.results.values())
    pinned |= recording.reached
    return {key for key in pinned if key in graph_regions}


def _regions_of(recording: Recording, tensors: Iterable[torch.Tensor]) -> set[int]:
    regions = (recording.memory.region_of(t) for t in tensors if t.numel())
    return {id(region) for region in regions if region is not None}
