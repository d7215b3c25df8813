"""What all checks share: the last step, run once, and what a script does with it.

A check has two parts: `record` runs the last step on the recording, in as many ways as needed, and
`lines` prints what those runs become in the script's `main`. What was observed is never printed as
a verdict: the script measures again, by the rules that the oracles judge by.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

import torch

from fuzzgraph import reference
from fuzzgraph.case import EngineConfig
from fuzzgraph.execution.session import Snapshot
from fuzzgraph.finding import Finding
from fuzzgraph.memory import Region
from fuzzgraph.observation import Observation, StepRecord
from fuzzgraph.repro.literals import tensor_text
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.rules.comparison import same_bits
from fuzzgraph.world import Batch

_AGAIN = 3
"""Further runs before an engine is held to bits, as many as its oracle sees."""


@dataclass
class ScriptCheck:
    """The last step runs once; subclasses look at what it left."""

    story: ClassVar[str] = ""
    """What the check does, in one sentence: the docstring of `main`."""

    by_address: ClassVar[bool] = False
    """Whether it compares where results lie, and not what they hold."""
    opening: ClassVar[bool] = False
    """Whether the opening of the engine has to be recorded as well, and no step."""

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
            raise NotStandalone(f"the step itself raised {self.run.failure.error}")

    def results(self, run: Run) -> dict[str, torch.Tensor] | None:
        """What the function of a run returns."""
        return None

    def regions(self, recording: Recording) -> list[Region]:
        """Regions that the check itself names."""
        return []

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        """Statements of `main` after the world of the last step was laid out."""
        raise NotImplementedError

    @property
    def seen(self) -> Observation:
        """What the last step showed."""
        if self.run is None or self.run.seen is None:
            raise NotStandalone("the step was not observed")
        return self.run.seen

    def step_record(self, recording: Recording, batch: Batch) -> StepRecord:
        """The step with its truth, as the oracles are given it."""
        session = recording.opened.session
        step = StepRecord(batch.step, "", self.config, batch, session.fields)
        if session.promised_outputs(batch.mode) and batch.raw_bs:
            truth = reference.expected(batch, self.config)
            step.expected, step.value_bound = truth.outputs, truth.value_bound
            if (weights := recording.opened.fp8_weights) is not None:
                step.weight_errors = partial(reference.weight_errors, batch, self.config, weights)
            step.yardstick = partial(reference.yardstick, batch, self.config)
        return step

    def nondeterministic(self, recording: Recording, batch: Batch, before: Snapshot) -> bool:
        """Whether the engine differs from itself in the same world; leaves memory as `before`."""
        first = self.glance(recording, batch)
        runs = range(_AGAIN)
        found = any(not same_bits(self._again(recording, batch, before), first) for _ in runs)
        recording.opened.restore(before)
        return found

    def _again(self, recording: Recording, batch: Batch, before: Snapshot) -> torch.Tensor:
        recording.opened.restore(before)
        return self.glance(recording, batch)

    def glance(self, recording: Recording, batch: Batch) -> torch.Tensor:
        """The buffer after one more run of the step, unrecorded; it leaves its traces."""
        session = recording.opened.session
        try:
            if batch.via == "eager":
                session.eager(batch)
            else:
                session.prepare_replay(batch)
                session.replay(batch)
            return seen_tensor(session.observe(batch), self.finding.buffer)
        except Exception as error:  # the engine's own
            raise NotStandalone(f"a run of the step raised {type(error).__name__}") from None

    def observed(self, run: Run) -> dict[str, torch.Tensor]:
        """The finding's buffer, as a run showed it."""
        return {self.finding.buffer: seen_tensor(run.seen, self.finding.buffer)}

    def tolerance_lines(self, step: StepRecord, want: str, *, both: bool = False) -> list[str]:
        """`worst`, the place where `got` is farther from `want` than the engine's dtype allows.

        Args:
            both: whether `want` is a result of the engine as well.
        """
        name = self.finding.buffer
        bound, rounding = step.value_bound, reference.rounding_of(name, self.config)
        if both:
            bound, rounding = 2 * bound, rounding.of_both()
        given = ["got", want, "lambda: plain_error", "value_bound", str(rounding.dtype)]
        lines = [
            "# largest error of plain torch in the same dtype on the same inputs, and max|V|",
            f"plain_error, value_bound = {step.plain_error(name)!r}, {bound!r}",
        ]
        if rounds := _rounding_lines(rounding, step.weight_errors().get(name), results=1 + both):
            given += ["relative", "absolute"]
        return [*lines, *rounds, f"worst = beyond_tolerance({', '.join(given)})"]

    def told(self, behind: str, before: str = "") -> list[str]:
        """The last statements: report `worst`, the place that differs, if there is one."""
        found = f'[f"{before}{{BUFFER}}{{worst}} {behind}"]'
        return [f"found = {found} if worst else []", "return report(found)"]


def _rounding_lines(
    rounding: reference.Rounding, errors: torch.Tensor | None, results: int
) -> list[str]:
    """What the model itself rounds, and what `errors` of weights in FP8 come to in so many results
    of the engine; none where it rounds nothing."""
    if errors is None and not rounding.relative and not rounding.absolute:
        return []
    if errors is None:
        what, absolute = "a small step", repr(rounding.absolute)
    else:
        what, each = "so much of each", rounding.behind(results * errors).absolute
        absolute = f"{tensor_text(each)}[: len(got)]"  # type: ignore[arg-type]
    return [
        f"# what rounding explains: a part of a value, and {what}",
        f"relative, absolute = {rounding.relative!r}, {absolute}",
    ]


def seen_tensor(seen: Observation | None, name: str) -> torch.Tensor:
    """An output or metadata field that was observed.

    Raises:
        NotStandalone: the engine showed none of that name.
    """
    for part in (seen.metadata, seen.outputs) if seen is not None else ():
        if name in part:
            return part[name]
    raise NotStandalone(f"{name!r} was not observed")
