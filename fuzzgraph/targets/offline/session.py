"""What every session on a graph runner of sglang does alike, whatever its graphs are over."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.case import Mode
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner

__all__ = ["RunnerSession"]


class RunnerSession:
    """A model runner and the engine's graph runner on it."""

    runner: Any
    _model_runner: ModelRunner

    def keeps_outputs(self, mode: Mode) -> bool:
        return False

    def warm_up(self) -> None:
        """The runner warms up each size itself, before it captures it."""

    def capture(self) -> None:
        self._use()
        self.runner.capture()

    def _use(self) -> None:
        """Sessions share the process; each brings its own server arguments with it."""
        self._model_runner.configuration.use()

    def results(self) -> Mapping[str, torch.Tensor]:
        return {}

    def close(self) -> None:
        """Nothing outlives the session."""
