"""What all checks share: the last step, run once, and what a script does with it.

A check has two parts: `record` runs the last step on the recording, in as many ways as needed, and
`lines` prints what those runs become in the script's `main`. Nothing that was observed is printed
as a verdict: the script measures again.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import ClassVar

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.finding import Finding
from fuzzgraph.memory import Region
from fuzzgraph.observation import Observation
from fuzzgraph.repro.trace import Recording, Run
from fuzzgraph.repro.unsupported import Unsupported
from fuzzgraph.world import Batch

__all__ = ["Check", "seen_tensor"]


@dataclass
class Check:
    """The last step runs once; subclasses look at what it left."""

    story: ClassVar[str] = ""
    """What the check does, in one sentence: the docstring of `main`."""

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

    def _glance(self, recording: Recording, batch: Batch) -> torch.Tensor:
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
            raise Unsupported(f"a run of the step raised {type(error).__name__}") from None

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
