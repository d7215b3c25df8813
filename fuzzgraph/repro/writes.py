"""Checks of what a step wrote: red zones, rows of others, new keys and values, kept results."""

from __future__ import annotations

from fuzzgraph.content import content_for
from fuzzgraph.finding import Finding
from fuzzgraph.memory import Region
from fuzzgraph.reference import new_tokens
from fuzzgraph.repro.check import Check
from fuzzgraph.repro.literals import tensor_text
from fuzzgraph.repro.trace import Recording
from fuzzgraph.repro.unsupported import Unsupported
from fuzzgraph.world import RESERVED_SLOT, Batch

__all__ = ["ForeignWrite", "KeptOutput", "NewKV", "RedZone"]


class RedZone(Check):
    """Bytes around the buffer."""

    story = "Nothing outside the buffer may change."

    def regions(self, recording: Recording) -> list[Region]:
        return regions_called(recording, self.finding.buffer)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        called = [names[key] for key in names if key in self._mine]
        checks = [f"*overruns({name!r}, {name})," for name in called]
        return [f"{step}()", "return report([", *(f"    {line}" for line in checks), "])"]

    _mine: frozenset[int] = frozenset()

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        self._mine = frozenset(map(id, self.regions(recording)))


class ForeignWrite(RedZone):
    """Rows that the batch does not own, before and after."""

    story = "Rows that the batch does not own keep their bytes."

    def regions(self, recording: Recording) -> list[Region]:
        return _pool_regions(recording, self.finding.buffer)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        assert self.run is not None
        own = _own_rows(self.run.batch, str(self.finding.detail.get("what", "slot")))
        name = next(names[key] for key in names if key in self._mine)
        return [
            f"before = {name}.clone()",
            f"{step}()",
            f"own = {{{', '.join(map(str, own)) or '*()'}}}  # {_OWN[_what(self.finding)]}",
            f"return report(changed({name!r}, {name}, before, own))",
        ]


class NewKV(ForeignWrite):
    """New keys and values, or new states, against what the model defines."""

    story = "What the step stores for its new tokens is what the model defines."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        pools, content = recording.opened.session.pools, content_for(self.config)
        mine = self.regions(recording)[0]
        if pools.state is not None and recording.memory.region_of(pools.state) is mine:
            self._slots, self._truth = batch.state_slots, content.state_rows(batch, after=True)
            return
        for index, plane in enumerate(pools.kv_planes):
            if recording.memory.region_of(plane) is mine:
                planes = content.kv_planes(*new_tokens(batch, self.config))
                self._slots, self._truth = batch.slot_mapping, planes[index]
                self._truth = self._truth.view(-1, *plane.shape[1:])
                return
        raise Unsupported(f"{self.finding.buffer!r} holds no KV and no state")

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        assert self.run is not None
        name = next(names[key] for key in names if key in self._mine)
        return [
            f"{step}()",
            f"slots = {self._slots.tolist()}  # of the batch's new tokens",
            "# what the model defines for them, stored as the pool stores it",
            f"want = {tensor_text(self._truth)}",
            f"return report(differences('{name}[slots]', {name}[slots], want, 'by the model'))",
        ]


class KeptOutput(Check):
    """A result that was handed out earlier and must survive: looked at before and after."""

    story = "A result that was promised to be kept survives the step."

    def record(self, recording: Recording, batch: Batch) -> None:
        source = self.finding.detail.get("kept_from")
        handed_out = [run.results for run in recording.runs if run.batch.step == source]
        kept = handed_out[0].get(self.finding.buffer) if handed_out else None
        region = None if kept is None else recording.memory.region_of(kept)
        if region is None:
            raise Unsupported("the result that was handed out does not lie in guarded memory")
        self._mine = region
        mode = next(run.batch.mode for run in recording.runs if run.batch.step == source)
        self._promised = recording.opened.session.keeps_outputs(mode)
        super().record(recording, batch)

    def regions(self, recording: Recording) -> list[Region]:
        return [self._mine]

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        if not self._promised:
            return [f"{step}()", "return report([])  # this engine promises to keep no results"]
        name = names[id(self._mine)]
        since = self.finding.detail.get("kept_from")
        return [
            f"handed_out = {name}.clone()  # the result of step {since}, promised to be kept",
            f"{step}()",
            "other = 'when it was handed out'",
            f"return report(differences({self.finding.buffer!r}, {name}, handed_out, other))",
        ]


_OWN = {
    "slot": "the reserved slot and the slots of the batch's new tokens",
    "state": "the reserved state and the states of the batch",
    "row": "the page map is read only",
}


def _what(finding: Finding) -> str:
    what = str(finding.detail.get("what", "slot"))
    return what if what in _OWN else "slot"


def _own_rows(batch: Batch, what: str) -> list[int]:
    if what == "row":
        return []
    rows = batch.state_slots if what == "state" else batch.slot_mapping
    return sorted({RESERVED_SLOT, *rows.tolist()})


def regions_called(recording: Recording, name: str) -> list[Region]:
    found = [region for region in recording.regions() if region.name == name]
    if not found:
        raise Unsupported(f"no region of engine or graph memory is called {name!r}")
    return found


def _pool_regions(recording: Recording, name: str) -> list[Region]:
    """The region of a pool's tensor, called by its path or by its place among the pools."""
    named = [region for region in recording.regions() if region.name == name]
    if named:
        return named
    pools = recording.opened.session.pools
    tensors = {f"kv_planes[{i}]": plane for i, plane in enumerate(pools.kv_planes)}
    tensors |= {
        other: getattr(pools, other)
        for other in ("req_to_token", "encoder_to_token", "state")
        if getattr(pools, other) is not None
    }
    region = recording.memory.region_of(tensors[name]) if name in tensors else None
    if region is None:
        raise Unsupported(f"no pool is called {name!r}")
    return [region]
