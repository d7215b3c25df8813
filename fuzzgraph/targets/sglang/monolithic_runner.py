"""The engine's own decode runner up to sglang 0.5.13, opened without a server.

Everything that pads, sizes or orders is the engine's: its constructor, its capture loop, its
`replay_prepare`. Put in its place are the device graph (a `GraphEngine` captures instead), the
model (there is none: the subject is metadata) and, only where a case captures more rows than the
request pool has and there is one rank, the filter on the ladder. A server gets such a ladder by
rounding the pool up to the attention-TP size (sglang get_batch_sizes_to_capture, PR 20978), which
the engine does itself where a case has several ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import CapturedGraph, GraphEngine
from fuzzgraph.targets.sglang.driven_runner import DrivenRunner
from fuzzgraph.targets.sglang.loading import engine_module
from fuzzgraph.targets.sglang.stand_ins import ModelRunner, no_forward

__all__ = ["RUNNER_MODULE", "MonolithicRunner"]

RUNNER_MODULE = "sglang.srt.model_executor.cuda_graph_runner"


class _DeviceGraph:
    """What the runner keeps in place of a `torch.cuda.CUDAGraph`."""

    captured: CapturedGraph[Any]

    def replay(self) -> None:
        self.captured.replay()


def _runner_class(graphs: GraphEngine, on_capture: Callable[[int], None]) -> type:
    base: Any = engine_module(RUNNER_MODULE).CudaGraphRunner

    class DecodeRunner(base):  # type: ignore[misc]
        may_capture = False

        def capture(self) -> None:
            if self.may_capture:  # the constructor calls it, the session decides when
                super().capture()

        def capture_one_batch_size(self, bs: int, *args: Any, **kwargs: Any) -> Any:
            self.capturing = bs
            return super().capture_one_batch_size(bs, *args, **kwargs)

        def _create_device_graph(self) -> _DeviceGraph:
            return _DeviceGraph()

        def _capture_graph(
            self, graph: _DeviceGraph, pool: Any, stream: Any, run_once_fn: Callable[[], Any]
        ) -> Any:
            graph.captured = graphs.capture(run_once_fn, key=f"decode/{self.capturing}")
            on_capture(self.capturing)
            return graph.captured.outputs

    return DecodeRunner


@contextlib.contextmanager
def _ladder(config: EngineConfig) -> Iterator[None]:
    """Lets a ladder through that exceeds the request pool; any other is the engine's affair."""
    if config.capture_bs[-1] <= config.req_pool_size or config.attn_tp_size > 1:
        yield
        return
    module = engine_module(RUNNER_MODULE)
    own = module.get_batch_sizes_to_capture
    module.get_batch_sizes_to_capture = lambda *_: (list(config.capture_bs), [])
    try:
        yield
    finally:
        module.get_batch_sizes_to_capture = own


class MonolithicRunner(DrivenRunner):
    """`CudaGraphRunner`: one class that pads, captures and replays. Nothing captured yet.

    Args:
        runner: has its attention backend.
        on_capture: called with each size as soon as its graph is captured.
    """

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        graphs: GraphEngine,
        on_capture: Callable[[int], None],
    ) -> None:
        module = engine_module(RUNNER_MODULE)
        module.set_global_graph_memory_pool("the graph engine's")
        if runner.model is None:
            runner.model = SimpleNamespace(forward=no_forward)
        with _ladder(config):
            self._engine = _runner_class(graphs, on_capture)(runner)

    def capture(self) -> None:
        """The engine's own capture loop, largest size first."""
        self._engine.may_capture = True
        with engine_module(RUNNER_MODULE).model_capture_mode():
            self._engine.capture()

    def can_run(self, forward_batch: Any) -> bool:
        return bool(self._engine.can_run(forward_batch))

    def prepare(self, forward_batch: Any) -> None:
        self._engine.replay_prepare(forward_batch)

    def replay(self) -> Any:
        """What the captured forward returned."""
        graph = self._engine.graphs[self._engine.bs]
        graph.replay()
        return graph.captured.outputs
