"""The engine's own decode runner from sglang 0.5.14 on, opened without a server.

It captures and replays through an object that it asks for once, `BaseCudaGraphBackend`. Ours hands
both to a `GraphEngine`; padding, sizes and order stay the engine's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import CapturedGraph, GraphEngine
from fuzzgraph.targets.sglang.driven_runner import DrivenRunner
from fuzzgraph.targets.sglang.loading import engine_module, has_module
from fuzzgraph.targets.sglang.stand_ins import ModelRunner, no_forward

__all__ = ["RUNNER_MODULE", "PluggableRunner", "backend_class", "graph_device"]

RUNNER_MODULE = "sglang.srt.model_executor.runner.decode_cuda_graph_runner"
_BACKEND = "sglang.srt.model_executor.runner_backend.base_cuda_graph_backend"
_WARM_UPS = 2
"""As often as the engine's own full-graph backend runs a forward before it captures."""


def backend_class(graphs: GraphEngine, on_capture: Callable[[int], None], kind: str) -> type:
    """A `BaseCudaGraphBackend` of this release that captures by `graphs`.

    Args:
        graphs: captures and replays.
        on_capture: called with each size as soon as its graph is captured.
        kind: names the graphs.
    """
    base: Any = engine_module(_BACKEND).BaseCudaGraphBackend

    class RecordedBackend(base):  # type: ignore[misc]
        def __init__(self) -> None:
            self.captured: dict[Any, CapturedGraph[Any]] = {}

        @contextlib.contextmanager
        def capture_session(self, stream: Any) -> Iterator[None]:
            yield

        def capture_one(
            self,
            shape_key: Any,
            forward_fn: Callable[[], Any],
            *_: Any,
            post_warmup_hook: Callable[[], None] | None = None,
            **__: Any,
        ) -> None:
            for _once in range(_WARM_UPS):
                forward_fn()
                if post_warmup_hook is not None:
                    post_warmup_hook()
            self.captured[shape_key] = graphs.capture(forward_fn, key=f"{kind}/{shape_key.size}")
            on_capture(shape_key.size)

        def can_run(self, forward_batch: Any, shape_key: Any) -> bool:
            return shape_key in self.captured

        @contextlib.contextmanager
        def replay_session(self) -> Iterator[None]:
            yield

        def replay(self, shape_key: Any, static_forward_batch: Any, **_: Any) -> Any:
            self.captured[shape_key].replay()
            return self.captured[shape_key].outputs

        def cleanup(self) -> None:
            self.captured.clear()

    return RecordedBackend


@contextlib.contextmanager
def graph_device(backend: Any, config: EngineConfig, *modules: Any) -> Iterator[None]:
    """While a runner opens and captures: our backend, no stream, and the case's ladder.

    The ladder is put in place only where it exceeds the request pool (see `monolithic_runner`).
    """
    if not hasattr(torch.cpu, "is_current_stream_capturing"):
        torch.cpu.is_current_stream_capturing = lambda: False  # type: ignore[attr-defined]
    replaced: dict[str, Any] = {
        "resolve_decode_backend": lambda *_, **__: backend,
        "graph_capture": _no_stream,
        "get_or_create_global_graph_capture_stream": lambda *_: None,
    }
    if config.attn_tp_size == 1 and config.capture_bs[-1] > config.req_pool_size:
        replaced["get_batch_sizes_to_capture"] = lambda *_, **__: (list(config.capture_bs), [])
    own = [(m, name, getattr(m, name)) for m in modules for name in replaced if hasattr(m, name)]
    for module, name, _ in own:
        setattr(module, name, replaced[name])
    try:
        yield
    finally:
        for module, name, value in own:
            setattr(module, name, value)


@contextlib.contextmanager
def _no_stream(*_: Any, **__: Any) -> Iterator[Any]:
    yield SimpleNamespace(stream=None)


def shared_output(config: EngineConfig) -> Any:
    """The buffer that all graphs write their logits to; nobody promises anything of it here."""
    return SimpleNamespace(
        get_logits_buffer=lambda vocab, rows=None: torch.zeros(rows or config.capture_bs[-1], vocab)
    )


class PluggableRunner(DrivenRunner):
    """`DecodeCudaGraphRunner` over a backend of ours. Nothing captured yet.

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
        self._config = config
        self._module = engine_module(RUNNER_MODULE)
        self._backend = backend_class(graphs, on_capture, "decode")()
        runner.graph_shared_output = shared_output(config)
        runner.attn_tp_sequence_sharded = lambda tokens: config.attn_tp_size > 1
        if runner.model is None:
            runner.model = SimpleNamespace(forward=no_forward, shared_experts_config=None)
        base: Any = self._module.DecodeCudaGraphRunner

        class DecodeRunner(base):  # type: ignore[misc]
            may_capture = False

            def capture(self) -> None:
                if self.may_capture:  # the constructor calls it, the session decides when
                    super().capture()

        with graph_device(self._backend, config, self._module):
            self._engine: Any = DecodeRunner(runner)

    def capture(self) -> None:
        """The engine's own capture loop, largest size first."""
        self._engine.may_capture = True
        modes = "sglang.srt.model_executor.runner_utils.capture_mode"
        module = engine_module(modes) if has_module(modes) else self._module
        with graph_device(self._backend, self._config, self._module), module.model_capture_mode():
            self._engine.capture()

    def can_run(self, forward_batch: Any) -> bool:
        return bool(self._engine.can_run_graph(forward_batch))

    def prepare(self, forward_batch: Any) -> None:
        self._engine.load_batch(forward_batch)

    def replay(self) -> Any:
        """What the captured forward returned."""
        return self._backend.replay(self._engine._replay_graph_key, None)
