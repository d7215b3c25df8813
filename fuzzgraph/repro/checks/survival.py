"""The check that a step comes back."""

from __future__ import annotations

from fuzzgraph.repro.checks.base import ScriptCheck
from fuzzgraph.repro.not_standalone import NotStandalone
from fuzzgraph.repro.trace import Recording
from fuzzgraph.world import Batch


class SurvivalCheck(ScriptCheck):
    """The operation that raises."""

    story = "The step comes back."

    def record(self, recording: Recording, batch: Batch) -> None:
        ran = self.finding.detail.get("run", "replay")
        if ran not in ("replay", "eager"):
            raise NotStandalone(f"it happened in a second run of the step ({ran})")
        self._eagerly = ran == "eager" and batch.via == "graph"
        if self._eagerly:
            recording.lay(batch)
        self.run = recording.add(batch, "eager" if self._eagerly else "step")
        failure = self.run.failure
        if failure is not None and failure.op is None:
            raise NotStandalone(f"the engine's own Python raised {failure.error}")

    def lines(self, step: str, names: dict[int, str]) -> list[str]:
        return [
            "try:",
            f"    {'eager' if self._eagerly else step}()",
            "except Exception as error:",
            "    return report([f'raised {type(error).__name__}: {error}'])",
            "return report([])",
        ]
