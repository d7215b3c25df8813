"""Runs one step in all the ways the oracles ask for, and records what was seen.

World A comes first, on the session with its past: that is the step under test. The other runs
start from saved bytes and attributes and leave no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from dataclasses import field as attribute

import torch

from fuzzgraph import reference
from fuzzgraph.execution.opening import OpenSession, SessionLost
from fuzzgraph.memory import (
    AttributeSnapshot,
    Perturbation,
    restore_attributes,
    snapshot_attributes,
)
from fuzzgraph.observation import AddressChange, Field, KeptOutput, Observation, RunKind, StepRecord
from fuzzgraph.oracles.comparison import beyond_yardstick, same_bits
from fuzzgraph.world import TRAPS, Batch

__all__ = ["KeptResults", "StepRunner"]


@dataclass(slots=True)
class KeptResults:
    """Results an engine handed out and promised to keep, with their bytes at that time."""

    entries: list[tuple[int, str, torch.Tensor, torch.Tensor]] = attribute(default_factory=list)

    def changed(self) -> list[KeptOutput]:
        return [
            KeptOutput(name, step)
            for step, name, handed_out, then in self.entries
            if not same_bits(handed_out, then)
        ]

    def keep(self, step: int, results: Mapping[str, torch.Tensor]) -> None:
        self.entries += [(step, name, value, value.clone()) for name, value in results.items()]


@dataclass(frozen=True, slots=True)
class _Moment:
    """Bytes and attributes of a session at one moment."""

    image: torch.Tensor
    attributes: AttributeSnapshot

    @classmethod
    def of(cls, opened: OpenSession) -> _Moment:
        return cls(opened.memory.snapshot(), snapshot_attributes(opened.session.roots))

    def restore(self, opened: OpenSession) -> None:
        opened.memory.restore(self.image)
        restore_attributes(self.attributes)


class StepRunner:
    """Runs the steps of one case, in order, on one open session."""

    def __init__(
        self,
        opened: OpenSession,
        target: str,
        needs: frozenset[RunKind],
        *,
        second_opinion: bool = False,
    ) -> None:
        self._opened = opened
        self._target = target
        self._needs = needs
        self._second_opinion = second_opinion
        self._kept = KeptResults()
        self._fields = {entry.name: entry for entry in opened.session.fields}

    def run(self, batch: Batch) -> StepRecord:
        """All runs of one step; the session is left as world A left it."""
        opened, session = self._opened, self._opened.session
        step = StepRecord(batch.step, self._target, opened.config, batch, session.fields)
        step.promised_outputs = session.promised_outputs(batch.mode)
        opened.painter.lay(batch)
        before = _Moment.of(opened)
        try:
            step.runs["replay"] = self._execute(batch, "replay")
        except SessionLost as lost:
            step.stumbles.append(lost.stumble)
            step.zone_hits = opened.memory.zone_hits(lost.stumble.stage)
            return step
        self._check_memory(step, before)
        self._add_truth(step)
        after = _Moment.of(opened)
        try:
            self._run_twins(step, before)
        except SessionLost as lost:
            step.stumbles.append(lost.stumble)
        after.restore(opened)
        return step

    def run_bare(self, batch: Batch) -> Observation:
        """Lay out, prepare, replay, observe and compute one reference: the yardstick of speed."""
        self._opened.painter.lay(batch)
        seen = self._execute(batch, "replay")
        reference.expected(batch, self._opened.config)
        return seen

    def _execute(self, batch: Batch, run: RunKind) -> Observation:
        session = self._opened.session
        eagerly = run == "eager" or batch.via == "eager"
        stage = "eager" if eagerly else "prepare"
        try:
            if eagerly:
                session.eager(batch)
            else:
                session.prepare_replay(batch)
                stage = "replay"
                session.replay(batch)
            stage = "check"
            return session.observe(batch)
        except Exception as error:  # whatever the engine raises is the finding
            raise SessionLost.at(stage, run, error) from error

    def _check_memory(self, step: StepRecord, before: _Moment) -> None:
        opened, session, batch = self._opened, self._opened.session, step.batch
        stage = "eager" if batch.via == "eager" else "replay"
        if not opened.memory.zones_intact():
            step.zone_hits = opened.memory.zone_hits(stage)
            opened.memory.repair_zones()
        step.foreign_writes = opened.painter.foreign_writes(batch, before.image)
        if batch.via == "graph":
            step.address_changes = [
                AddressChange(name, captured, tensor.data_ptr())
                for name, (tensor, captured) in session.captured_addresses().items()
                if tensor.data_ptr() != captured
            ]
            values = session.capture_values(batch)
            step.at_capture = {name: got for name, (got, _) in values.items()}
            step.capture_truth = {name: want for name, (_, want) in values.items()}
        step.kept_changes = self._kept.changed()
        if session.keeps_outputs(batch.mode):
            self._kept.keep(batch.step, session.results())

    def _add_truth(self, step: StepRecord) -> None:
        """The float64 truth, and the yardstick only where the plain bound does not settle it."""
        if not step.promised_outputs or not step.batch.raw_bs:
            return
        truth = reference.expected(step.batch, step.config)
        step.expected, step.value_bound = truth.outputs, truth.value_bound
        outputs = step.runs["replay"].outputs
        if any(
            name in outputs
            and beyond_yardstick(outputs[name][: len(want)], want, None, truth.value_bound)
            for name, want in truth.outputs.items()
        ):
            step.yardstick = reference.yardstick(step.batch, step.config)
        if self._second_opinion:
            step.yardstick = step.yardstick or reference.yardstick(step.batch, step.config)
            step.second_opinion = reference.second_opinion(step.batch, step.config)

    def _run_twins(self, step: StepRecord, before: _Moment) -> None:
        replay = step.runs["replay"]
        if "screen" in self._needs:
            self._restore_twin(step.batch, before)
            for change in self._changes(step.batch):
                change.apply()
            step.runs["screen"] = self._execute(step.batch, "screen")
            if not _same(step.runs["screen"], replay):
                self._attribute(step, before)
        if "eager" in self._needs and step.batch.via == "graph" and step.batch.raw_bs:
            before.restore(self._opened)
            step.runs["eager"] = self._execute(step.batch, "eager")

    def _restore_twin(self, batch: Batch, before: _Moment) -> None:
        """The session just after capture, with this step's truth and the past's harmless tails.

        Tails that the target declares free, and what padded rows left in the reserved slot, may
        differ between any two histories: both runs get the same.
        """
        opened = self._opened
        opened.reset()
        opened.painter.lay(batch)
        opened.painter.keep_reserved(before.image)
        for field, tensor in self._static_buffers():
            if field.padding.kind == "free":
                tensor.copy_(opened.memory.as_in(before.image, tensor))

    def _changes(self, batch: Batch, *, piecewise: bool = False) -> list[Perturbation]:
        """All don't-care memory of the step, with its change to world B.

        `piecewise` lists the red zones buffer by buffer, to find the guilty one.
        """
        memory = self._opened.memory
        zones = memory.zone_perturbations(1) if piecewise else [memory.zone_perturbation(1)]
        changes = [*zones, *memory.unwritten_perturbation(1)]
        changes += self._opened.painter.dont_care(batch)
        if batch.via == "graph":
            changes += self._rewritten()
        return changes

    def _rewritten(self) -> Iterable[Perturbation]:
        for field, tensor in self._static_buffers():
            if field.rewritten:
                first = 1 if field.axis == "indptr" else 0  # offsets start at a zero set once
                yield Perturbation(
                    f"{field.name} as the previous replay left it", _trap(tensor[first:])
                )

    def _static_buffers(self) -> Iterator[tuple[Field, torch.Tensor]]:
        """Each declared field with the whole buffer that the engine writes it to.

        An engine with several runners names them "runner.field".
        """
        for name, (tensor, _) in self._opened.session.captured_addresses().items():
            field = self._fields.get(name.rsplit(".", 1)[-1])
            if field is not None:
                yield field, tensor

    def _attribute(self, step: StepRecord, before: _Moment) -> None:
        """Tell apart what the screen found: foreign reads, the past, or nondeterminism."""
        replay, batch = step.runs["replay"], step.batch
        before.restore(self._opened)
        step.runs["again"] = self._execute(batch, "again")
        step.wavers = not _same(step.runs["again"], replay)
        step.runs["other_world"] = self._in_other_world(batch, before, self._changes(batch))
        if not _same(step.runs["other_world"], replay):
            step.guilty = self._find_guilty(step, before)
        self._restore_twin(batch, before)
        step.runs["twin"] = self._execute(batch, "twin")

    def _in_other_world(
        self, batch: Batch, before: _Moment, changes: Iterable[Perturbation]
    ) -> Observation:
        before.restore(self._opened)
        for change in changes:
            change.apply()
        return self._execute(batch, "other_world")

    def _find_guilty(self, step: StepRecord, before: _Moment) -> str:
        """Bisect the changed places down to those that the result depends on."""
        suspects = self._changes(step.batch, piecewise=True)

        def guilty(part: list[Perturbation]) -> bool:
            try:
                seen = self._in_other_world(step.batch, before, part)
            except SessionLost:
                return True
            return not _same(seen, step.runs["replay"])

        while len(suspects) > 1:
            half = len(suspects) // 2
            if guilty(suspects[:half]):
                suspects = suspects[:half]
            elif guilty(suspects[half:]):
                suspects = suspects[half:]
            else:  # only together
                break
        return ", ".join(change.region for change in suspects)


def _trap(tensor: torch.Tensor) -> Callable[[], None]:
    def change() -> None:
        tensor.fill_(TRAPS[1])

    return change


def _same(one: Observation, two: Observation) -> bool:
    """Outputs and used metadata agree bit for bit, padded rows included."""
    for first, second in ((one.outputs, two.outputs), (one.metadata, two.metadata)):
        if first.keys() != second.keys():
            return False
        if not all(same_bits(value, second[name]) for name, value in first.items()):
            return False
    return True
