"""The engine's own decode runner, opened without a server and captured by our graph engine.

Everything that pads, sizes or orders is the engine's: its constructor, its capture loop, its
`replay_prepare`. Put in its place are the device graph (a `GraphEngine` captures instead), the
model (there is none: the subject is metadata) and, only where a case captures more rows than the
request pool has, the filter on the ladder. A server gets such a ladder by rounding the pool up to
the attention-TP size (sglang get_batch_sizes_to_capture, PR 20978), which needs several ranks.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import CapturedGraph, GraphEngine
from fuzzgraph.targets.sglang.loading import engine_module
from fuzzgraph.targets.sglang.stand_ins import ModelRunner

__all__ = ["RUNNER_MODULE", "capture_all", "open_decode_runner"]

RUNNER_MODULE = "sglang.srt.model_executor.cuda_graph_runner"


class _DeviceGraph:
    """What the runner keeps in place of a `torch.cuda.CUDAGraph`."""

    captured: CapturedGraph[Any]

    def replay(self) -> None:
        self.captured.replay()


def _no_model(*_: Any, **__: Any) -> Any:
    """A forward without outputs: no kernel runs, the metadata is the subject."""
    logits = engine_module("sglang.srt.layers.logits_processor")
    return logits.LogitsProcessorOutput(next_token_logits=None)


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
    if config.capture_bs[-1] <= config.req_pool_size:
        yield
        return
    module = engine_module(RUNNER_MODULE)
    own = module.get_batch_sizes_to_capture
    module.get_batch_sizes_to_capture = lambda *_: (list(config.capture_bs), [])
    try:
        yield
    finally:
        module.get_batch_sizes_to_capture = own


def open_decode_runner(
    runner: ModelRunner,
    config: EngineConfig,
    graphs: GraphEngine,
    on_capture: Callable[[int], None],
) -> Any:
    """A decode runner of this release on `runner.attn_backend`, nothing captured yet.

    `on_capture` is called with each size as soon as its graph is captured.
    """
    module = engine_module(RUNNER_MODULE)
    # Shared by all runners of a process; sessions stand for processes.
    engine_module("sglang.srt.model_executor.input_buffers")._forward_input_buffer_pool.clear()
    module.set_global_graph_memory_pool("the graph engine's")
    runner.model = SimpleNamespace(forward=_no_model)
    with _ladder(config):
        return _runner_class(graphs, on_capture)(runner)


def capture_all(decode_runner: Any) -> None:
    """The engine's own capture loop, largest size first."""
    decode_runner.may_capture = True
    with engine_module(RUNNER_MODULE).model_capture_mode():
        decode_runner.capture()
