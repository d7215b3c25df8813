"""The engine's own decode runner from sglang 0.5.14 on, opened without a server.

It captures and replays through an object that it asks for once, `BaseCudaGraphBackend`. Ours hands
both to a `GraphEngine`; padding, sizes and order stay the engine's.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Hashable
from functools import partial
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.capture import (
    backend_class,
    deferred_capture,
    graph_key_of,
    on_device,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, no_forward

RUNNER_MODULE = "sglang.srt.model_executor.runner.decode_cuda_graph_runner"


def shared_output(config: EngineConfig, device: str) -> Any:
    """The buffer that all graphs write their logits to; nobody promises anything of it here."""

    def buffer(vocab: int, rows: int | None = None) -> torch.Tensor:
        return torch.zeros(rows or config.capture_bs[-1], vocab, device=device)

    return Stub(get_logits_buffer=buffer)


class DecodeCudaGraphRunnerDriver(RunnerDriver):
    """`DecodeCudaGraphRunner` over a backend of ours. Nothing captured yet.

    Args:
        runner: has its attention backend.
        on_capture: called with the key of each graph as soon as it is captured.
    """

    _modes = RUNNER_MODULE

    def __init__(
        self,
        runner: ModelRunner,
        config: EngineConfig,
        graphs: GraphEngine,
        on_capture: Callable[[Any], None],
    ) -> None:
        module = engine_module(RUNNER_MODULE)
        backend = backend_class(graphs, on_capture, "decode")
        runner.graph_shared_output = shared_output(config, runner.device)
        # Ranks of experts alone compute all rows.
        shards = runner.tp_size > 1 and config.ep_size == 1
        runner.attn_tp_sequence_sharded = lambda tokens: shards
        if runner.model is None:
            runner.model = Stub(forward=no_forward, shared_experts_config=None)
        self._device = partial(on_device, (module,), config, backend)
        with self._device():
            self._engine = deferred_capture(self._kind(module))(runner)

    def _kind(self, module: Any) -> Any:
        """The engine's class."""
        return module.DecodeCudaGraphRunner

    @property
    def metadata_glue(self) -> Any:
        """The engine's graphs of preparations, where a server has switched them on."""
        return self._engine._metadata_glue

    @property
    def graph_key(self) -> Hashable:
        """Of the graph replayed last; before any replay that of the graph captured first."""
        captured = next(iter(self._engine.backend.captured))
        return graph_key_of(getattr(self._engine, "_replay_graph_key", captured))

    def prepare(self, forward_batch: Any) -> None:
        self._engine.load_batch(forward_batch)

    def replay(self) -> Any:
        return self._engine.backend.replay(self._engine._replay_graph_key, None)

    def handed_out(self, forward_batch: Any, replayed: Any) -> Any:
        engine = self._engine
        done = Stub(replay_session=contextlib.nullcontext, replay=lambda *_: replayed)
        with replaced_names([engine], {"backend": done, "load_batch": lambda *_: None}):
            return engine.execute(forward_batch)
