"""Checks of what a step computed: against float64 attention, and against the eager run."""

from __future__ import annotations

import torch

from fuzzgraph import reference
from fuzzgraph.case import EngineConfig
from fuzzgraph.repro.check import Check, seen_tensor
from fuzzgraph.repro.literals import tensor_text
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.repro.unsupported import Unsupported
from fuzzgraph.world import Batch

__all__ = ["Computes", "Eager"]


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
            "saved = save()",
            f"got = {step}()[:{self._live}]  # the live rows",
            "restore(saved)",
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
