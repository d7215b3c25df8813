"""Checks by a second run of the last step: in another world, or without a past."""

from __future__ import annotations

from typing import ClassVar

import torch

from fuzzgraph import reference
from fuzzgraph.memory import Image, Perturbation, Region
from fuzzgraph.oracles.comparison import same_bits
from fuzzgraph.repro.check import Check
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.repro.unsupported import Unsupported
from fuzzgraph.world import Batch

__all__ = ["History", "Interference", "LeftOver"]


class Interference(Check):
    """The same step twice; the second time memory that is nobody's business holds other values."""

    story = "The step runs twice; in between, memory that it must not read gets other values."
    blamed: ClassVar[str] = "blamed"
    """Detail of the finding that names the memory."""
    between: ClassVar[str] = "before memory that the batch does not own was changed"

    def record(self, recording: Recording, batch: Batch) -> None:
        opened = recording.opened
        recording.lay(batch)
        moment = opened.snapshot()
        before, zones = recording.image(), _zones(recording)
        chosen = self._guilty(recording, batch)
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

    def _guilty(self, recording: Recording, batch: Batch) -> list[Perturbation]:
        """The changes that show in the finding's own buffer, those it blames first.

        A step that reads several places blames one of them, which need not be this buffer's.
        """
        blamed = str(self.finding.detail.get(self.blamed, ""))
        candidates = self._suspects(recording, batch)
        named = [change for change in candidates if change.region and change.region in blamed]
        moment = recording.opened.snapshot()
        first = self._glance(recording, batch)
        for chosen in (named, *([change] for change in candidates), candidates):
            recording.opened.restore(moment)
            for change in chosen:
                change.apply()
            if chosen and not same_bits(self._glance(recording, batch), first):
                break
        else:
            chosen = named or candidates
        recording.opened.restore(moment)
        return chosen

    def _suspects(self, recording: Recording, batch: Batch) -> list[Perturbation]:
        opened = recording.opened
        return opened.candidates(opened.pool_writer.state_of(batch), 1)

    def regions(self, recording: Recording) -> list[Region]:
        return self._changed

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        return [
            "saved = save()",
            f"first = {step}()",
            "restore(saved)",
            "change_memory_of_others()",
            f"second = {step}()",
            f"other = {self.between!r}",
            f"return report(differences({self.finding.buffer!r}, second, first, other))",
        ]


class LeftOver(Interference):
    """The same step twice; the second time another replay seems to have come before."""

    story = "The step runs twice; in between, what it must rewrite first gets other values."
    blamed = "left_over"
    between = "before what the previous replay left was changed"

    def _suspects(self, recording: Recording, batch: Batch) -> list[Perturbation]:
        return [*recording.opened.rewritten()]


class History(Check):
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
            raise Unsupported(f"the step without a past raised {twin.failure.error}")
        self.others.append(twin)
        self._live = self._part(recording)

    def _forget(self, recording: Recording, batch: Batch, before: Image) -> None:
        """Just after capture, with this step's truth and the past's harmless leftovers."""
        opened = recording.opened
        opened.reset()
        opened.write_step_state(opened.pool_writer.state_of(batch), before)

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
            "restore(captured)",
            f"{world}()",
            f"want = without_past(){self._live}",
            f"return report(differences({self.finding.buffer!r}, got, want, 'without the past'))",
        ]


def _zones(recording: Recording) -> dict[int, torch.Tensor]:
    return {id(region): recording.zone_bytes(region) for region in recording.regions()}
