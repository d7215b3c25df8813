"""Checks of what a step computed: against float64 attention, and against the eager run.

What is compared, and within which tolerance, is what the oracles of the same names do: a script
must not accuse an engine that they acquit.
"""

from __future__ import annotations

from functools import partial

import torch

from fuzzgraph import reference
from fuzzgraph.case import EngineConfig
from fuzzgraph.execution.open_session import Snapshot
from fuzzgraph.observation import StepRecord
from fuzzgraph.oracles.comparison import same_bits, tolerance
from fuzzgraph.repro.check import Check, seen_tensor
from fuzzgraph.repro.literals import tensor_text
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.repro.unsupported import Unsupported
from fuzzgraph.world import Batch

__all__ = ["Computes", "Eager", "Form"]


class Computes(Check):
    """Live rows of an output against float64 attention."""

    story = "The live rows equal float64 attention, within the error of plain torch."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        assert self.run is not None
        step, name = _expectation(recording, batch, self.config), self.finding.buffer
        if name not in step.expected:
            raise Unsupported(f"{name!r} has no reference")
        self._want = step.expected[name]
        got = seen_tensor(self.run.seen, name)
        self._tolerance = 0.0  # integers must be equal
        if got.is_floating_point():
            dtype = reference.rounding_dtype(name, self.config)
            self._tolerance = tolerance(dtype, step.value_bound, step.plain_error(name))

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        live = len(self._want)
        return [
            f"got = {step}()[:{live}]  # the live rows",
            "# float64 attention over the tokens of each request, computed from the batch alone",
            f"want = {tensor_text(self._want)}",
            *_WHY,
            f"tolerance = {self._tolerance!r}",
            f"return report(errors({self.finding.buffer!r}, got, want, tolerance))",
        ]


class Form(Check):
    """Shape and dtype of an output."""

    story = "The output has the rows and the dtype that the step promises."

    def record(self, recording: Recording, batch: Batch) -> None:
        self._eagerly = self.finding.stage == "eager" and batch.via == "graph"
        if self._eagerly:
            recording.lay(batch)
        self.run = recording.add(batch, "eager" if self._eagerly else "step")
        if self.run.failure is not None or self.run.seen is None:
            raise Unsupported("the step itself raised")
        form = reference.output_spec(self.finding.buffer, self.run.seen, batch, self.config)
        if form is None:
            raise Unsupported(f"{self.finding.buffer!r} has no reference")
        self._form = form

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._observed(run)

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        return [
            f"got = {'eager' if self._eagerly else step}()",
            f"shape, dtypes = {(self._form.rows, *self._form.columns)}, {self._form.dtypes}",
            "wrong = []",
            "if tuple(got.shape) != shape:",
            '    wrong.append(f"shape {tuple(got.shape)}, must be {shape}")',
            "if got.dtype not in dtypes:",
            '    wrong.append(f"dtype {got.dtype}, must be {dtypes[0]}")',
            "return report(wrong)",
        ]


class Eager(Check):
    """The replay against the same engine without a graph, from the same bytes."""

    story = "A replay equals the same engine without a graph, from the same bytes."

    def record(self, recording: Recording, batch: Batch) -> None:
        recording.lay(batch)
        before = recording.opened.snapshot()
        nondeterministic = self._nondeterministic(recording, batch, before)
        recording.opened.restore(before)
        super().record(recording, batch)
        recording.opened.restore(before)
        eager = recording.add(batch, "eager")
        if eager.failure is not None:
            raise Unsupported(f"the eager run raised {eager.failure.error}")
        self.others.append(eager)
        assert self.run is not None and self.run.seen is not None and eager.seen is not None
        replayed, name = self.run.seen, self.finding.buffer
        want = seen_tensor(eager.seen, name)
        step = _expectation(recording, batch, self.config)
        self._live = len(step.expected.get(name, want))  # an engine may pad an eager batch too
        self._tolerance: float | None = None
        """None: bit for bit, which takes the same order of summation in both runs."""
        alike = replayed.plan == eager.seen.plan
        alike &= replayed.padded_tokens == eager.seen.padded_tokens
        if (nondeterministic or not alike) and name in step.expected and want.is_floating_point():
            error = step.plain_error(name)
            dtype = reference.rounding_dtype(name, self.config)
            self._tolerance = tolerance(dtype, 2 * step.value_bound, error)

    def results(self, run: Run) -> dict[str, torch.Tensor]:
        return self._observed(run)

    def _nondeterministic(self, recording: Recording, batch: Batch, before: Snapshot) -> bool:
        """Whether the engine differs from itself in the same world."""
        first = self._glance(recording, batch)
        for _ in range(_AGAIN):
            recording.opened.restore(before)
            if not same_bits(self._glance(recording, batch), first):
                return True
        return False

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        buffer = repr(self.finding.buffer)
        head = [
            "saved = save()",
            f"got = {step}()[:{self._live}]  # the live rows",
            "restore(saved)",
            f"want = eager()[:{self._live}]",
        ]
        if self._tolerance is None:
            return [*head, f"return report(differences({buffer}, got, want, 'run eagerly'))"]
        return [
            *head,
            "# the two may sum in another order, and both of them round:",
            *_WHY,
            f"tolerance = {self._tolerance!r}",
            f"return report(errors({buffer}, got, want.double(), tolerance))",
        ]


_AGAIN = 3
"""Further runs before an engine is held to bits, as many as its oracle sees."""

_WHY = [
    "# twice the error of plain torch in this dtype, and a multiple of max|V| for sums that nearly",
    "# cancel and for what softmax loses in float32",
]


def _expectation(recording: Recording, batch: Batch, config: EngineConfig) -> StepRecord:
    """The step with its truth and its yardstick, as the oracles are given it."""
    session = recording.opened.session
    step = StepRecord(batch.step, "", config, batch, session.fields)
    if session.promised_outputs(batch.mode) and batch.raw_bs:
        truth = reference.expected(batch, config)
        step.expected, step.value_bound = truth.outputs, truth.value_bound
        step.yardstick = partial(reference.yardstick, batch, config)
    return step
