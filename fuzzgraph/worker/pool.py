"""The children of one worker: the active one, and a pre-started spare after the first crash.

An engine takes seconds to import, and a fuzzer that finds crashes starts it again and again.
"""

from __future__ import annotations

import contextlib
from pathlib import Path

import msgspec

from fuzzgraph.worker.messages import Entered, Open
from fuzzgraph.worker.process import Child


class ChildPool:
    """Starts and ends children."""

    def __init__(self, folder: Path, opening: Open) -> None:
        self.opening = opening
        """What every new child is told to open."""
        self.child: Child | None = None
        self.last_entered = Entered()
        """The last stage of the child that ended last."""
        self._folder = folder
        self._spare: Child | None = None

    def start(self) -> Child:
        """The child to ask from now on: the spare, or a new one."""
        self.child, self._spare = self._spare or self._new(), None
        return self.child

    def prestart(self) -> None:
        """Start another child, which begins to import the engine at once."""
        if self._spare is None:
            self._spare = self._new()

    def retarget(self, target: str) -> None:
        """From now on children open another target."""
        setup = msgspec.structs.replace(self.opening.setup, target=target)
        self.opening = msgspec.structs.replace(self.opening, setup=setup)
        self._kill_spare()

    def kill(self) -> None:
        """Kill the child that is asked."""
        if self.child is not None:
            self.last_entered = self.child.entered
            self.child.kill()
            self.child = None

    def close(self) -> None:
        """Let the active child end by itself; the spare has nothing to finish."""
        self._kill_spare()
        if self.child is not None:
            self.child.leave()
            self.child = None

    def _new(self) -> Child:
        self._folder.mkdir(parents=True, exist_ok=True)
        device = self.opening.setup.device
        child = Child(self._folder, device=device)
        with contextlib.suppress(ConnectionError):  # found when it is asked
            child.channel.send(self.opening)
            child.opening = True
        return child

    def _kill_spare(self) -> None:
        if self._spare is not None:
            self._spare.kill()
            self._spare = None
