"""What every session on a graph runner of sglang does alike, whatever its graphs are over."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.targets.offline.session import GraphSession
from fuzzgraph.targets.sglang.attention_model import AttentionModel, Written
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch


class RunnerSession(GraphSession):
    """A model runner and the engine's graph runner on it."""

    runner: Any
    _model_runner: ModelRunner
    _attention: AttentionModel | None = None
    """The layer whose outputs are judged; None where no layer runs."""
    _past: tuple[Batch, list[Written]] | None = None

    def capture(self) -> None:
        self._use()
        self.capturing = True
        self.runner.capture()
        self.capturing = False

    def _use(self) -> None:
        """Sessions share the process; each brings its own server arguments with it."""
        self._model_runner.configuration.use()

    def _write_past(self, batch: Batch) -> None:
        """Worked out once for a step, and written in each of its runs."""
        if self._attention is None:
            return
        if self._past is None or self._past[0] is not batch:
            self._past = batch, [_where_it_goes(*each) for each in self._attention.past(batch)]
        for memory, index, values in self._past[1]:
            memory[index] = values


def _where_it_goes(memory: torch.Tensor, index: Any, values: torch.Tensor) -> Written:
    """The same with index and values on the device of the engine's memory."""
    parts = index if isinstance(index, tuple) else (index,)
    moved = tuple(
        part.to(memory.device) if isinstance(part, torch.Tensor) else part for part in parts
    )
    return memory, moved, values.to(memory.device)
