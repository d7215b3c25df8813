"""What a script does with the last step, by kind of finding.

A check has two parts: `record` runs the last step on the recording, in as many ways as needed, and
`lines` prints what those runs become in the script's `main`. Nothing that was observed is printed as
a verdict: the script measures again.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import ClassVar

import torch

from fuzzgraph import reference
from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.finding import Finding
from fuzzgraph.memory import Perturbation, Region
from fuzzgraph.observation import Observation
from fuzzgraph.repro.claims import claims_of
from fuzzgraph.repro.literals import tensor_text
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.world import RESERVED_SLOT, Batch

__all__ = ["Check", "Unsupported", "check_for"]


class Unsupported(Exception):
    """The finding cannot be shown by the operations alone; says why."""


@dataclass
class Check:
    """The last step runs once; subclasses look at what it left."""

    story: ClassVar[str] = ""
    """What the check does, in one sentence: the docstring of `main`."""

    finding: Finding
    config: EngineConfig
    run: Run | None = None
    others: list[Run] = field(default_factory=list)
    """Further runs of the last step, printed as functions of their own."""
    changes: list[tuple[str, torch.Tensor, torch.Tensor]] = field(default_factory=list)
    """(function name, bytes before, bytes after) of changes that the script makes to memory."""
    zones: list[Region] = field(default_factory=list)
    """Regions whose red zones the script changes."""
    pool: bool = False
    """Whether graph intermediates hold the other world's poison in the second run."""

    def record(self, recording: Recording, batch: Batch) -> None:
        self.run = recording.add(batch)
        if self.run.failure is not None:
            raise Unsupported(f"the step itself raised {self.run.failure.error}")

    def results(self, run: Run) -> dict[str, torch.Tensor] | None:
        """What the function of a run returns."""
        return None

    def regions(self, recording: Recording) -> list[Region]:
        """Regions that the check itself names."""
        return []

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        """Statements of `main` after the world of the last step was laid out."""
        raise NotImplementedError

    def _observed(self, run: Run) -> dict[str, torch.Tensor]:
        return {self.finding.buffer: seen_tensor(run.seen, self.finding.buffer)}


def seen_tensor(seen: Observation | None, name: str) -> torch.Tensor:
    """An output or metadata field that was observed.

    Raises:
        Unsupported: the engine showed none of that name.
    """
    for part in (seen.metadata, seen.outputs) if seen is not None else ():
        if name in part:
            return part[name]
    raise Unsupported(f"{name!r} was not observed")


def regions_called(recording: Recording, name: str) -> list[Region]:
    found = [region for region in recording.regions() if region.name == name]
    if not found:
        raise Unsupported(f"no region of engine or graph memory is called {name!r}")
    return found


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


class NewKV(ForeignWrite):
    """New keys and values against what the model defines."""

    story = "The new tokens' keys and values are those that the model defines."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        if batch.mode == "draft":
            raise Unsupported("tokens of later draft steps follow from the outputs")
        pools = recording.opened.session.pools
        mine = self.regions(recording)[0]
        for index, plane in enumerate(pools.kv_planes):
            if recording.memory.region_of(plane) is mine:
                planes = content_for(self.config).kv_planes(batch.input_ids, batch.positions)
                self._truth = planes[index].view(-1, *plane.shape[1:])
                return
        raise Unsupported(f"{self.finding.buffer!r} holds no KV")

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        assert self.run is not None
        name = next(names[key] for key in names if key in self._mine)
        slots = self.run.batch.slot_mapping.tolist()
        return [
            f"{step}()",
            f"slots = {slots}  # of the batch's new tokens",
            "# what the model defines for them, stored as the pool stores it",
            f"want = {tensor_text(self._truth)}",
            f"return report(differences({name!r}, {name}[slots], want, 'by the model'))",
        ]


class Computes(Check):
    """Live rows of an output against float64 attention."""

    story = "The live rows equal float64 attention, within the error of plain torch."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        truth = reference.expected(batch, self.config)
        name = self.finding.buffer
        if name not in truth.outputs:
            raise Unsupported(f"{name!r} has no reference")
        self._want = truth.outputs[name]
        self._tolerance = tolerance(batch, self.config, name, truth)

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        live = len(self._want)
        return [
            f"got = {step}()[:{live}]  # the live rows",
            "# float64 attention over the tokens of each request, computed from the batch alone",
            f"want = {tensor_text(self._want)}",
            "# twice the error of plain torch in this dtype, and eps * max|V|",
            f"tolerance = {self._tolerance!r}",
            f"return report(errors({self.finding.buffer!r}, got, want, tolerance))",
        ]


def tolerance(
    batch: Batch, config: EngineConfig, name: str, truth: reference.Expected, bounds: float = 1.0
) -> float:
    """The yardstick of an output: error of plain torch in its dtype, doubled, and eps * max|V|."""
    want = truth.outputs[name]
    if not want.is_floating_point():
        return 0.0
    plain = reference.yardstick(batch, config).get(name)
    slack = 0.0
    if plain is not None and plain.numel():
        slack = 2.0 * float((plain.double() - want).abs().max())
    kind = getattr(torch, "float32" if name == "state" else config.dtype)
    return slack + float(torch.finfo(kind).eps) * truth.value_bound * bounds


class Eager(Check):
    """The replay against the same engine without a graph, from the same bytes."""

    story = "A replay equals the same engine without a graph, from the same bytes."

    def record(self, recording: Recording, batch: Batch) -> None:
        recording.lay(batch)
        before = recording.opened.moment()
        super().record(recording, batch)
        recording.opened.restore(before)
        eager = recording.add(batch, "eager")
        if eager.failure is not None:
            raise Unsupported(f"the eager run raised {eager.failure.error}")
        self.others.append(eager)
        self._live = len(seen_tensor(eager.seen, self.finding.buffer))
        assert self.run is not None and self.run.seen is not None and eager.seen is not None
        self._tolerance = 0.0
        if self.run.seen.plan != eager.seen.plan:
            truth = reference.expected(batch, self.config)
            name = self.finding.buffer
            if name in truth.outputs:
                self._tolerance = tolerance(batch, self.config, name, truth, bounds=2.0)

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        buffer = repr(self.finding.buffer)
        head = [
            "saved = MEMORY.narrow(0, 0, TOP).clone()",
            f"got = {step}()[:{self._live}]  # the live rows",
            "MEMORY.narrow(0, 0, TOP).copy_(saved)",
            "want = eager()",
        ]
        if not self._tolerance:
            return [*head, f"return report(differences({buffer}, got, want, 'run eagerly'))"]
        return [
            *head,
            "# the eager plan sums in another order: the yardstick decides",
            f"tolerance = {self._tolerance!r}",
            f"return report(errors({buffer}, got, want.double(), tolerance))",
        ]


class Interference(Check):
    """The same step twice; the second time memory that is nobody's business holds other values."""

    story = "The step runs twice; in between, memory that it must not read gets other values."

    def record(self, recording: Recording, batch: Batch) -> None:
        opened = recording.opened
        recording.lay(batch)
        moment = opened.moment()
        before, zones = recording.image(), _zones(recording)
        chosen = _guilty(recording, batch, str(self.finding.detail.get("guilty", "")))
        for change in chosen:
            change.apply()
        after = recording.image()
        regions = recording.regions()
        self.zones = [
            region
            for region in regions
            if not torch.equal(recording.zone_bytes(region), zones[id(region)])
        ]
        self.pool = any(change.region == "graph pool" for change in chosen)
        self.changes.append(("change_memory_of_others", before, after))
        self._changed = [
            region
            for region in regions
            if region.segment == "engine"
            and not torch.equal(recording.raw(region, before), recording.raw(region, after))
        ]
        opened.restore(moment)
        super().record(recording, batch)

    def regions(self, recording: Recording) -> list[Region]:
        return self._changed

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        return [
            "saved = MEMORY.narrow(0, 0, TOP).clone()",
            f"first = {step}()",
            "MEMORY.narrow(0, 0, TOP).copy_(saved)",
            "change_memory_of_others()",
            f"second = {step}()",
            "other = 'before memory that the batch does not own was changed'",
            f"return report(differences({self.finding.buffer!r}, second, first, other))",
        ]


def _zones(recording: Recording) -> dict[int, torch.Tensor]:
    return {id(region): recording.zone_bytes(region) for region in recording.regions()}


def _guilty(recording: Recording, batch: Batch, guilty: str) -> list[Perturbation]:
    """The changes that the finding blames; all of them where it could not tell."""
    opened, memory = recording.opened, recording.memory
    suspects = [*memory.zone_perturbations(1), *memory.unwritten_perturbation(1)]
    suspects += opened.painter.read(batch).dont_care(1)
    if batch.via == "graph":
        suspects += opened.rewritten()
    return [change for change in suspects if change.region and change.region in guilty] or suspects


class History(Check):
    """The last step after its past, against the same step straight after capture."""

    story = "The step after its past equals the same step straight after capture."

    def record(self, recording: Recording, batch: Batch) -> None:
        recording.lay(batch)
        before = recording.image()
        super().record(recording, batch)
        self._forget(recording, batch, before)
        twin = Run(batch, "twin")
        self.changes.append(
            (f"world_{batch.step}_without_past", recording.captured, recording.image())
        )
        recording.execute(twin)
        if twin.failure is not None:
            raise Unsupported(f"the step without a past raised {twin.failure.error}")
        self.others.append(twin)
        self._live = self._part(recording)

    def _forget(self, recording: Recording, batch: Batch, before: torch.Tensor) -> None:
        """Just after capture, with this step's truth and the past's harmless leftovers."""
        opened = recording.opened
        opened.reset()
        opened.painter.read(batch).lay()
        opened.painter.keep_reserved(before)
        for declared, tensor in opened.static_buffers():
            if declared.padding.kind == "free" and not declared.rewritten:
                tensor.copy_(opened.memory.as_in(before, tensor))

    def _part(self, recording: Recording) -> str:
        """The rows that must not depend on the past: all, or the live ones of a free field."""
        assert self.run is not None and self.run.seen is not None
        seen, name = self.run.seen, self.finding.buffer
        if name in seen.outputs:
            truth = reference.expected(self.run.batch, self.config).outputs
            return f"[:{len(truth[name])}]" if name in truth else ""
        declared = {each.name: each for each in recording.opened.session.fields}.get(name)
        if declared is None or declared.padding.kind != "free":
            return ""
        return f"[:{seen.num_tokens if declared.axis == 'tokens' else seen.raw_bs}]"

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        (world, _, _) = self.changes[0]
        return [
            f"got = {step}(){self._live}",
            "MEMORY.narrow(0, 0, TOP).copy_(captured)",
            f"{world}()",
            f"want = without_past(){self._live}",
            f"return report(differences({self.finding.buffer!r}, got, want, 'without the past'))",
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
        super().record(recording, batch)

    def regions(self, recording: Recording) -> list[Region]:
        return [self._mine]

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        name = names[id(self._mine)]
        since = self.finding.detail.get("kept_from")
        return [
            f"handed_out = {name}.clone()  # the result of step {since}, promised to be kept",
            f"{step}()",
            "other = 'when it was handed out'",
            f"return report(differences({self.finding.buffer!r}, {name}, handed_out, other))",
        ]


class Contract(Check):
    """A declared field against what it must hold for this batch."""

    story = "The metadata that the replay used says what the batch says."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        assert self.run is not None and self.run.seen is not None
        self._claims = claims_of(self.finding, recording, self.run.seen, batch, self.config)
        if self._claims is None:
            raise Unsupported("what is wrong is a Python object or a value kept since capture")

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        assert self._claims is not None
        return self._claims.tensors

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        assert self._claims is not None
        many = len(self._claims.tensors) > 1
        first = repr(next(iter(self._claims.tensors)))
        got = [f"seen = {step}()"] if many else [f"seen = {{{first}: {step}()}}"]
        return [*got, *self._claims.lines]


class Survival(Check):
    """The operation that raises."""

    story = "The step comes back."

    def record(self, recording: Recording, batch: Batch) -> None:
        self.run = recording.add(batch)
        failure = self.run.failure
        if failure is not None and failure.op is None:
            raise Unsupported(f"the engine's own Python raised {failure.error}")

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        return [
            "try:",
            f"    {step}()",
            "except Exception as error:",
            "    return report([f'raised {type(error).__name__}: {error}'])",
            "return report([])",
        ]


def check_for(finding: Finding, config: EngineConfig) -> Check:
    """The check that shows a finding of this kind.

    Raises:
        Unsupported: it is about something that operations cannot show.
    """
    if finding.step < 0:
        raise Unsupported("it happened before the first step")
    if finding.oracle == "reference" and "indices" in finding.detail:
        return NewKV(finding, config)
    if finding.oracle == "history" and "kept_from" in finding.detail:
        return KeptOutput(finding, config)
    kinds: dict[str, type[Check]] = {
        "footprint": ForeignWrite if finding.symptom == "foreign_write" else RedZone,
        "reference": Computes,
        "eager": Eager,
        "noninterference": Interference,
        "history": History,
        "contract": Contract,
        "survival": Survival,
    }
    if finding.oracle not in kinds or finding.symptom == "missing":
        raise Unsupported(f"oracle {finding.oracle!r} with symptom {finding.symptom!r}")
    return kinds[finding.oracle](finding, config)


def statements(lines: Iterable[str], indent: int = 4) -> list[str]:
    """Statements of a function body, those of several lines kept together."""
    space = " " * indent
    return [space + line if line else "" for text in lines for line in text.split("\n")]
