"""The engine's own `CPUGraphRunner`, opened without a server.

It keeps one compiled forward for each batch size and pads a batch into the inputs it captured. What
compiles is left out: the forward runs as it is, and the inputs it gets are the subject. Releases
that capture every size up to a limit get the case's ladder, as later ones get it from the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, no_forward

__all__ = ["RUNNER_MODULE", "CpuGraphRunnerDriver"]

RUNNER_MODULE = "sglang.srt.model_executor.cpu_graph_runner"


@contextlib.contextmanager
def _uncompiled(model: Any, *_: Any, **__: Any) -> Iterator[Any]:
    """In place of `patch_model`, which compiles the forward."""
    yield model.forward


class CpuGraphRunnerDriver:
    """`CPUGraphRunner` with all sizes captured."""

    width = 1

    def __init__(self, runner: ModelRunner, config: EngineConfig) -> None:
        module = engine_module(RUNNER_MODULE)
        runner.model = Stub(forward=no_forward, shared_experts_config=None)
        ladder = list(config.capture_bs)
        replaced = {"patch_model": _uncompiled, "get_batch_sizes_to_capture": lambda _: ladder}
        own = {name: getattr(module, name) for name in replaced}
        for name, value in replaced.items():
            setattr(module, name, value)
        try:
            self._engine = module.CPUGraphRunner(runner)
        finally:
            for name, value in own.items():
                setattr(module, name, value)
        self.prepared: Any = None
        """The forward batch that the compiled forward gets: the captured one where it is padded."""

    @property
    def buffers(self) -> Any:
        """The runner itself: its static inputs are attributes of it."""
        return self._engine

    @property
    def padded_bs(self) -> int:
        return int(self.prepared.batch_size if self.prepared else self._engine.max_bs)

    def capture(self) -> None:
        """Its constructor captured all sizes."""

    def can_run(self, forward_batch: Any) -> bool:
        ask = getattr(self._engine, "can_run_graph", None) or self._engine.can_run
        return bool(ask(forward_batch))

    def prepare(self, forward_batch: Any) -> None:
        skips = getattr(self._engine, "_get_skip_cross_attention", None)
        arguments = {} if skips is None else {"skip": skips(forward_batch)}
        self.prepared = self._engine.prepare_replay(forward_batch, **arguments)

    def replay(self) -> Any:
        forward = self._engine.graphs[self.prepared.batch_size]
        return forward(self.prepared.input_ids, self.prepared.positions, self.prepared)
