"""Which check shows which kind of finding."""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.finding import Finding
from fuzzgraph.repro.capture import AtCapture
from fuzzgraph.repro.check import Check
from fuzzgraph.repro.claims import claims_of
from fuzzgraph.repro.computes import Computes, Eager, Form
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.repro.twins import History, Interference, LeftOver
from fuzzgraph.repro.unsupported import Unsupported
from fuzzgraph.repro.writes import ForeignWrite, KeptOutput, NewKV, RedZone
from fuzzgraph.world import Batch

__all__ = ["Check", "check_for"]


class Contract(Check):
    """A declared field against what it must hold for this batch."""

    story = "The metadata that the replay used says what the batch says."

    def record(self, recording: Recording, batch: Batch) -> None:
        super().record(recording, batch)
        assert self.run is not None and self.run.seen is not None
        self._claims = claims_of(self.finding, recording, self.run.seen, batch, self.config)
        if self._claims is None:
            raise Unsupported("what is wrong is no single field of the metadata")

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
    if finding.oracle == "contract" and "at capture" in finding.message:
        return AtCapture(finding, config)
    if finding.oracle == "history" and "kept_from" in finding.detail:
        return KeptOutput(finding, config)
    if finding.symptom == "broken_form":
        return Form(finding, config)
    if finding.oracle == "history" and "left_over" in finding.detail:
        return LeftOver(finding, config)
    kinds: dict[str, type[Check]] = {
        "footprint": ForeignWrite if finding.symptom == "foreign_write" else RedZone,
        "reference": Computes,
        "eager": Eager,
        "noninterference": Interference,
        "history": History,
        "contract": Contract,
        "survival": Survival,
    }
    if finding.oracle not in kinds or finding.symptom in ("missing", "stray_access", "race"):
        raise Unsupported(f"oracle {finding.oracle!r} with symptom {finding.symptom!r}")
    return kinds[finding.oracle](finding, config)
