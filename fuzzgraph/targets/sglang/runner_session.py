"""What every session on a graph runner of sglang does alike, whatever its graphs are over."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.offline.session import GraphSession
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner


class RunnerSession(GraphSession):
    """A model runner and the engine's graph runner on it."""

    runner: Any
    _model_runner: ModelRunner

    def capture(self) -> None:
        self._use()
        self.capturing = True
        self.runner.capture()
        self.capturing = False

    def _use(self) -> None:
        """Sessions share the process; each brings its own server arguments with it."""
        self._model_runner.configuration.use()
