"""The children of one worker: the one that is asked, and one that stands by after a first death.

An engine takes seconds to import, and a fuzzer that finds crashes starts it again and again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from fuzzgraph.worker.messages import Open
from fuzzgraph.worker.process import Child

__all__ = ["Nursery"]


class Nursery:
    """Starts and ends children."""

    def __init__(self, folder: Path, opening: Open) -> None:
        self.opening = opening
        """What every new child is told to open."""
        self.child: Child | None = None
        self.last_stage = folder / "stage"
        """Where the child that ended last left word of its stages."""
        self._folder = folder
        self._spare: Child | None = None
        self._started = 0

    def bring(self) -> Child:
        """The child to ask from now on: the one that stood by, or a new one."""
        self.child, self._spare = self._spare or self._new(), None
        return self.child

    def stand_by(self) -> None:
        """Start another child, which begins to import the engine at once."""
        if self._spare is None:
            self._spare = self._new()

    def retarget(self, target: str) -> None:
        """From now on children open another target."""
        setup = msgspec.structs.replace(self.opening.setup, target=target)
        self.opening = msgspec.structs.replace(self.opening, setup=setup)
        self._drop_spare()

    def drop(self) -> None:
        """Kill the child that is asked."""
        if self.child is not None:
            self.last_stage.unlink(missing_ok=True)
            self.last_stage = self.child.stage_path
            self.child.kill()
            self.child = None

    def close(self) -> None:
        """Let the child leave; the other one has nothing to finish."""
        self._drop_spare()
        if self.child is not None:
            self.child.leave()
            self.child = None

    def _new(self) -> Child:
        self._folder.mkdir(parents=True, exist_ok=True)
        self._started += 1
        device = self.opening.setup.device
        child = Child(self._folder, device=device, number=self._started)
        with contextlib.suppress(ConnectionError):  # found when it is asked
            child.channel.send(self.opening)
            child.told = True
        return child

    def _drop_spare(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare.stage_path.unlink(missing_ok=True)
            self._spare = None
