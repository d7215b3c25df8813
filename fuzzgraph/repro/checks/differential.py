"""Checks by a second look: an eager run, another world, no past, a result that was handed out."""

from __future__ import annotations

from typing import ClassVar

import torch

from fuzzgraph.execution.attribution import fewest
from fuzzgraph.execution.session import Snapshot
from fuzzgraph.memory import Image, Perturbation, Region
from fuzzgraph.oracles.eager import compared_exactly, eager_rows
from fuzzgraph.oracles.history import history_rows
from fuzzgraph.oracles.reference import may_follow_padding
from fuzzgraph.repro.checks.base import ScriptCheck
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.rules.comparison import same_bits
from fuzzgraph.world import Batch


class EagerCheck(ScriptCheck):
    """The replay against the same engine without a graph, from the same bytes."""

    story = "A replay equals the same engine without a graph, from the same bytes."

    def record(self, recording: Recording, batch: Batch) -> None:
        recording.lay(batch)
        before = recording.opened.snapshot()
        self._step = self.step_record(recording, batch)
        self._step.nondeterministic = self.nondeterministic(recording, batch, before)
        super().record(recording, batch)
        recording.opened.restore(before)
        eager = recording.add(batch, "eager")
        if eager.failure is not None or eager.seen is None:
            raise NotStandalone("the eager run raised")
        self.others.append(eager)
        name = self.finding.buffer
        self._rows = eager_rows(self._step, name, eager.seen)
        self._exact = compared_exactly(self._step, name, self.seen, eager.seen)

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self.observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        head = [
            "saved = save()",
            f"replayed = {step}()[:{self._rows}]  # the live rows",
            "restore(saved)",
            f"eagerly = eager()[:{self._rows}]",
        ]
        if self.finding.stage == "eager":
            head.append("got, want = eagerly, replayed  # float64 attention confirms the replay")
            told = self.told("by the replay, which float64 attention confirms", "the eager run's ")
        else:
            head.append("got, want = replayed, eagerly")
            told = self.told("by the same engine run eagerly", "replayed ")
        if self._exact:
            return [*head, "worst = first_difference(got, want)", *told]
        return [
            *head,
            "# The two may sum in another order, and both of them round.",
            *self.tolerance_lines(self._step, "want.double()", both=True),
            *told,
        ]


class InterferenceCheck(ScriptCheck):
    """The same step twice; the second time memory that is nobody's business holds other values."""

    story = "The step runs twice; in between, memory that it must not read gets other values."
    blamed: ClassVar[str] = "blamed"
    """Detail of the finding that names the memory."""
    behind: ClassVar[str] = "once memory that the batch does not own was changed"

    def record(self, recording: Recording, batch: Batch) -> None:
        opened = recording.opened
        recording.lay(batch)
        moment = opened.snapshot()
        self._step = self.step_record(recording, batch)
        self._step.nondeterministic = self.nondeterministic(recording, batch, moment)
        if self._step.nondeterministic and self.finding.buffer not in self._step.expected:
            raise NotStandalone("the engine differs from itself in the same world")
        self._change(recording, self._blamed(recording, batch, moment))
        opened.restore(moment)
        super().record(recording, batch)

    def _change(self, recording: Recording, chosen: list[Perturbation]) -> None:
        """Apply the changes, and note what becomes other by them."""
        regions = recording.regions()
        before, zones = recording.image(), [recording.zone_bytes(region) for region in regions]
        for change in chosen:
            change.apply()
        after = recording.image()
        self.zones = [
            region
            for region, was in zip(regions, zones, strict=True)
            if not torch.equal(recording.zone_bytes(region), was)
        ]
        self.pool = any(change.region == "graph pool" for change in chosen)
        self.changes.append(("change_memory_of_others", before, after))
        self._changed = [
            region
            for region in regions
            if region.segment == "engine"
            and not torch.equal(recording.raw(region, before), recording.raw(region, after))
        ]

    def _blamed(self, recording: Recording, batch: Batch, moment: Snapshot) -> list[Perturbation]:
        """The fewest changes found that show in the finding's own buffer, those it blames first.

        A step that reads several places blames one of them, which need not be this buffer's.
        """
        blamed = str(self.finding.detail.get(self.blamed, ""))
        candidates = self._candidates(recording, batch)
        named = [change for change in candidates if change.region and change.region in blamed]
        first = self.glance(recording, batch)

        def shows(chosen: list[Perturbation]) -> bool:
            recording.opened.restore(moment)
            for change in chosen:
                change.apply()
            return not same_bits(self.glance(recording, batch), first)

        chosen = named or candidates
        if not (named and shows(named)) and shows(candidates):
            chosen = fewest(candidates, shows)
        recording.opened.restore(moment)
        return chosen

    def _candidates(self, recording: Recording, batch: Batch) -> list[Perturbation]:
        opened = recording.opened
        return opened.candidates(opened.pool_writer.state_of(batch), 1)

    def regions(self, recording: Recording) -> list[Region]:
        return self._changed

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self.observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        return [
            "saved = save()",
            f"first = {step}()",
            "restore(saved)",
            "change_memory_of_others()",
            f"second = {step}()",
            *self._comparison(),
            *self.told(self.behind),
        ]

    def _comparison(self) -> list[str]:
        if not self._step.nondeterministic:
            return ["worst = first_difference(second, first)"]
        rows = len(self._step.expected[self.finding.buffer])
        return [
            "# The engine differs from itself in the same world: bits prove nothing.",
            f"got, want = second[:{rows}], first[:{rows}].double()",
            *self.tolerance_lines(self._step, "want", both=True),
        ]


class LeftOverCheck(InterferenceCheck):
    """The same step twice; the second time another replay seems to have come before."""

    story = "The step runs twice; in between, what it must rewrite first gets other values."
    blamed = "left_over"
    behind = "once what the previous replay left was changed"

    def _candidates(self, recording: Recording, batch: Batch) -> list[Perturbation]:
        return [*recording.opened.rewritten()]


class HistoryCheck(ScriptCheck):
    """The last step after its past, against the same step straight after capture."""

    story = "The step after its past equals the same step straight after capture."

    def record(self, recording: Recording, batch: Batch) -> None:
        recording.lay(batch)
        before = recording.opened.snapshot().image
        super().record(recording, batch)
        self._forget(recording, batch, before)
        twin = Run(batch, "twin")
        self.changes.append(
            (f"world_{batch.step}_without_past", recording.captured, recording.image())
        )
        recording.execute(twin)
        if twin.failure is not None:
            raise NotStandalone(f"the step without a past raised {twin.failure.error}")
        self.others.append(twin)
        self._step = self.step_record(recording, batch)
        rows = history_rows(self._step, self.finding.buffer, self.seen)
        self._rows = "" if rows is None else f"[:{rows}]"

    def _forget(self, recording: Recording, batch: Batch, before: Image) -> None:
        """Just after capture, with this step's truth and the past's harmless leftovers."""
        opened = recording.opened
        opened.reset()
        opened.write_step_state(opened.pool_writer.state_of(batch), before)

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self.observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        (world, _, _) = self.changes[0]
        return [
            f"got = {step}(){self._rows}",
            "restore(captured)",
            f"{world}()",
            f"want = without_past(){self._rows}",
            *self._comparison(),
            *self.told("without the past"),
        ]

    def _comparison(self) -> list[str]:
        if may_follow_padding(self._step, self.finding.buffer, self.seen):
            return self.tolerance_lines(self._step, "want.double()", both=True)
        return ["worst = first_difference(got, want)"]


class KeptOutputCheck(ScriptCheck):
    """A result that was handed out earlier and must survive: looked at before and after."""

    story = "A result that was promised to be kept survives the step."

    def record(self, recording: Recording, batch: Batch) -> None:
        self._since = self.finding.detail.get("kept_from")
        earlier = [run for run in recording.runs if run.batch.step == self._since]
        kept = earlier[0].results.get(self.finding.buffer) if earlier else None
        region = None if kept is None else recording.memory.region_of(kept)
        if region is None:
            raise NotStandalone("the result that was handed out does not lie in guarded memory")
        self._mine = region
        self._promised = recording.opened.session.keeps_outputs(earlier[0].batch.mode)
        super().record(recording, batch)

    def regions(self, recording: Recording) -> list[Region]:
        return [self._mine]

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        if not self._promised:
            return [f"{step}()", "return report([])  # this engine promises to keep no results"]
        name = names[id(self._mine)]
        return [
            f"then = {name}.clone()  # handed out at step {self._since}, promised to be kept",
            f"{step}()",
            f"if same_bits({name}, then):",
            "    return report([])",
            f"return report([kept_text(BUFFER, {self._since})])",
        ]
