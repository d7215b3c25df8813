"""Checks of what a step computed: outputs and their form, new keys and values, new states."""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph import reference
from fuzzgraph.content import content_for
from fuzzgraph.memory import Region
from fuzzgraph.repro.checks.base import ScriptCheck
from fuzzgraph.repro.checks.footprint import pool_regions
from fuzzgraph.repro.checks.groups import planes_in
from fuzzgraph.repro.literals import tensor_text
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.world import Batch


class OutputCheck(ScriptCheck):
    """Live rows of an output against float64 attention."""

    story = "The live rows equal float64 attention, within the error of plain torch."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        self._step = self.step_record(recording, batch)
        if self.finding.buffer not in self._step.expected:
            raise NotStandalone(f"{self.finding.buffer!r} has no reference")

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self.observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        want = self._step.expected[self.finding.buffer]
        return [
            f"got = {step}()[:{len(want)}]  # the live rows",
            "# float64 attention over the tokens of each request, computed from the batch alone",
            f"want = {tensor_text(want)}",
            *self.tolerance_lines(self._step, "want"),
            *self.told("against float64 attention"),
        ]


class FormCheck(ScriptCheck):
    """Shape and dtype of an output."""

    story = "The output has the rows and the dtype that the step promises."

    def record(self, recording: Recording, batch: Batch) -> None:
        self._eagerly = self.finding.stage == "eager" and batch.via == "graph"
        if self._eagerly:
            recording.lay(batch)
        self.run = recording.add(batch, "eager" if self._eagerly else "step")
        if self.run.failure is not None:
            raise NotStandalone(f"the step itself raised {self.run.failure.error}")
        form = reference.output_spec(self.finding.buffer, self.seen, batch, self.config)
        if form is None:
            raise NotStandalone(f"{self.finding.buffer!r} has no reference")
        self._form = form

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self.observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        whose = "the eager run's " if self.finding.stage == "eager" else ""
        return [
            f"got = {'eager' if self._eagerly else step}()",
            f"shape, dtypes = {(self._form.rows, *self._form.columns)}, {self._form.dtypes}",
            "wrong = wrong_form(got, shape, dtypes)",
            f'return report([f"{whose}{{BUFFER}} {{wrong}}"] if wrong else [])',
        ]


class NewRowsCheck(ScriptCheck):
    """New keys and values, or new states, against what the model defines."""

    story = "What the step stores for its new tokens is what the model defines."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        self._mine = self.regions(recording)[0]
        self._find_truth(recording, batch)

    def _find_truth(self, recording: Recording, batch: Batch) -> None:
        pools = recording.opened.session.pools
        if pools.state is not None and recording.memory.region_of(pools.state) is self._mine:
            self._what, self._rows = "state", batch.state_slots
            self._truth = content_for(self.config).state_rows(batch, after=True)
            return
        parts = []
        for number, index, plane, seen in planes_in(recording, batch, [self._mine]):
            planes = recording.opened.pool_writer.groups[number].written(seen)
            parts.append((seen.slot_mapping, planes[index].view(-1, *plane.shape[1:])))
        if parts:
            slots, rows = zip(*parts, strict=True)
            self._what, self._rows = "slot", np.concatenate(slots)
            self._truth = torch.cat(rows)
            return
        raise NotStandalone(f"{self.finding.buffer!r} holds no KV and no state")

    def regions(self, recording: Recording) -> list[Region]:
        return pool_regions(recording, self.finding.buffer)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        pool = names[id(self._mine)]
        return [
            f"{step}()",
            f"{self._what}s = {self._rows.tolist()}  # of the batch's new tokens",
            "# what the model defines for them, stored as the pool stores it",
            f"expected = {pool}.clone()",
            f"expected[{self._what}s] = {tensor_text(self._truth)}",
            f"wrong = changed_rows({pool}, expected)[:8]",
            f"found = [wrong_rows_text(BUFFER, {self._what!r}, wrong)] if wrong else []",
            "return report(found)",
        ]
