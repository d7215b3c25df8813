"""The engine's own graph runners for drafts, opened without a server, in both of their shapes.

Up to 0.5.13 each has its own capture and replay; since 0.5.14 they are subclasses of the decode
runner and capture through its backend. A replay prepares its inputs itself.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_graph import POOL
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.runners import decode_cuda_graph_runner
from fuzzgraph.targets.sglang.runners.base import RunnerDriver, execute
from fuzzgraph.targets.sglang.runners.capture import (
    backend_class,
    deferred_capture,
    forget_input_buffers,
    on_device,
    recorded,
)
from fuzzgraph.targets.sglang.runners.decode import runner_module

_POOL = "sglang.srt.model_executor.cuda_graph_runner"


@dataclass(frozen=True, slots=True)
class RunnerKind:
    """Where a runner of the engine is found, and what it is driven with."""

    name: str
    module: str
    runner: str
    mode: Mode
    max_topk: int
    """Branches of a draft."""


DRAFT = RunnerKind(
    "draft",
    "sglang.srt.speculative.eagle_draft_cuda_graph_runner",
    "EAGLEDraftCudaGraphRunner",
    mode="draft",
    max_topk=4,
)
DRAFT_EXTEND = RunnerKind(
    "draft_extend",
    "sglang.srt.speculative.eagle_draft_extend_cuda_graph_runner",
    "EAGLEDraftExtendCudaGraphRunner",
    mode="draft_extend",
    max_topk=1,  # then the number of steps follows from that of draft tokens
)
FROZEN = RunnerKind(
    "frozen",
    "sglang.srt.speculative.frozen_kv_mtp_cuda_graph_runner",
    "FrozenKVMTPCudaGraphRunner",
    mode="draft",
    max_topk=1,  # with several branches its rows are branches, which is not driven
)


class DraftRunnerDriver(RunnerDriver):
    """A draft runner of this release on `worker`; nothing captured yet.

    Args:
        kind: which runner.
        worker: the stand-in of `draft_worker`.
        on_capture: called with each size as soon as its graph is captured.
    """

    def __init__(
        self,
        kind: RunnerKind,
        worker: Any,
        config: EngineConfig,
        graphs: GraphEngine,
        on_capture: Callable[[int], None],
    ) -> None:
        forget_input_buffers()
        module = engine_module(kind.module)
        self._modes = runner_module()
        base = getattr(module, kind.runner)
        backend: Any = None
        if has_module(decode_cuda_graph_runner.RUNNER_MODULE):
            backend = backend_class(graphs, on_capture, kind.name)
            runner = deferred_capture(base)
        else:
            engine_module(_POOL).set_global_graph_memory_pool(POOL)
            runner = recorded(base, graphs, on_capture, kind.name)
        self._device = partial(on_device, (module, engine_module(self._modes)), config, backend)
        with self._device():
            self._engine = self._open(runner, worker)
        self._given: tuple[Any, ...] = ()

    def _open(self, runner: type, worker: Any) -> Any:
        """The engine's object that replays, made of runners of this class."""
        return runner(worker)

    def prepare(self, forward_batch: Any, *more: Any) -> None:
        """Its replay prepares and replays in one go: here is what it will be given."""
        self._given = (forward_batch, *more)

    def replay(self) -> Any:
        """What the engine hands to its caller."""
        return execute(self._engine, *self._given)
