"""The engine's own decode runner up to sglang 0.5.13, opened without a server.

Everything that pads, sizes or orders is the engine's: its constructor, its capture loop, its
`replay_prepare`. Put in its place are the device (`capturing`), its graph (a `GraphEngine` captures
instead) and the model (there is none: the subject is metadata).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_graph import POOL
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.base import RunnerDriver, execute
from fuzzgraph.targets.sglang.runners.capture import on_device, recorded
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, no_forward

RUNNER_MODULE = "sglang.srt.model_executor.cuda_graph_runner"


class CudaGraphRunnerDriver(RunnerDriver):
    """`CudaGraphRunner`: one class that pads, captures and replays. Nothing captured yet.

    Args:
        runner: has its attention backend.
        on_capture: called with each size as soon as its graph is captured.
    """

    _modes = RUNNER_MODULE

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        graphs: GraphEngine,
        on_capture: Callable[[int], None],
    ) -> None:
        module = engine_module(RUNNER_MODULE)
        module.set_global_graph_memory_pool(POOL)
        if runner.model is None:
            runner.model = Stub(forward=no_forward)
        self._device = partial(on_device, (module,), config, lambda: None)
        with self._device():
            self._engine = recorded(module.CudaGraphRunner, graphs, on_capture, "decode")(runner)

    def prepare(self, forward_batch: Any) -> None:
        self._engine.replay_prepare(forward_batch)

    def replay(self) -> Any:
        graph = self._engine.graphs[self._engine.bs]
        graph.replay()
        return graph.captured.outputs

    def handed_out(self, forward_batch: Any, replayed: Any) -> Any:
        engine = self._engine
        replay = Stub(replay=lambda: None)
        done = {
            "graphs": {engine.bs: replay},
            "output_buffers": {engine.bs: replayed},
            "replay_prepare": lambda *_: None,
        }
        with replaced_names([engine], done):
            return execute(engine, forward_batch)
