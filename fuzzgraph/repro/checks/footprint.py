"""Checks of what a step wrote: red zones, and rows of others."""

from __future__ import annotations

from fuzzgraph.memory import Region
from fuzzgraph.ports import STATES
from fuzzgraph.repro.checks.base import ScriptCheck
from fuzzgraph.repro.checks.groups import planes_in
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.trace import Recording
from fuzzgraph.world import RESERVED_SLOT, Batch


class RedZoneCheck(ScriptCheck):
    """Bytes around the buffer."""

    story = "Nothing outside the buffer may change."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        self._mine = self.regions(recording)

    def regions(self, recording: Recording) -> list[Region]:
        name = self.finding.buffer
        found = [region for region in recording.regions() if region.name == name]
        if not found:
            raise NotStandalone(f"no region of engine or graph memory is called {name!r}")
        return found

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        checks = [
            f"    *overruns(BUFFER, {names[id(region)]}, {region.allocated_at!r}),"
            for region in self._mine
        ]
        return [f"{step}()", "return report([", *checks, "])"]


class ForeignRowsCheck(ScriptCheck):
    """Rows that the batch does not own, before and after."""

    story = "Rows that the batch does not own keep their bytes."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        self._mine = self.regions(recording)
        self._what = str(self.finding.detail.get("what", ""))
        if self._what not in _OWN:
            raise NotStandalone(f"nothing is known of who owns a {self._what!r}")
        rows = [batch.own_state_slots]
        if self._what == "slot":
            rows = [seen.slot_mapping for *_, seen in planes_in(recording, batch, self._mine)]
        own = {number for part in rows for number in part.tolist()}
        self._own = [] if self._what == "row" else sorted({RESERVED_SLOT, *own})

    def regions(self, recording: Recording) -> list[Region]:
        return pool_regions(recording, self.finding.buffer)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        pool = names[id(self._mine[0])]
        return [
            f"before = {pool}.clone()",
            f"{step}()",
            f"own = {self._own}  # {_OWN[self._what]}",
            f"foreign = [row for row in changed_rows({pool}, before) if row not in own][:8]",
            f"found = [foreign_rows_text(BUFFER, {self._what!r}, foreign)] if foreign else []",
            "return report(found)",
        ]


_OWN = {
    "slot": "the reserved slot and the slots of the batch's new tokens",
    "state": "the reserved state and the states of the batch",
    "row": "none: the page map is read only",
}


def pool_regions(recording: Recording, name: str) -> list[Region]:
    """The region of a pool's tensor, called by its path or by its place among the pools.

    Raises:
        NotStandalone: there is none of that name, or its rows are no slots.
    """
    found = _named_regions(recording, name)
    pools = recording.opened.session.pools
    planes = [(plane, "keys and values") for plane in pools.all_planes]
    planes += [(state, "states") for state in pools.states]
    for plane, what in planes:
        # Side by side or page by page: a row of the allocation is no slot.
        if recording.memory.region_of(plane) in found and not plane.is_contiguous():
            raise NotStandalone(f"{name!r} holds {what} in one allocation")
    for written in recording.opened.pool_writer.planes:
        by_page = written.count != len(written.tensor)
        if by_page and recording.memory.region_of(written.tensor) in found:
            raise NotStandalone(f"{name!r} is [pages, ...], a row of it is no slot")
    return found


def _named_regions(recording: Recording, name: str) -> list[Region]:
    named = [region for region in recording.regions() if region.name == name]
    if named:
        return named
    pools = recording.opened.session.pools
    tensors = dict(recording.opened.pool_writer.plane_names())
    tensors |= recording.opened.pool_writer.map_names()
    tensors |= {
        other: getattr(pools, other)
        for other in ("encoder_to_token", *STATES)
        if getattr(pools, other) is not None
    }
    region = recording.memory.region_of(tensors[name]) if name in tensors else None
    if region is None:
        raise NotStandalone(f"no pool is called {name!r}")
    return [region]
