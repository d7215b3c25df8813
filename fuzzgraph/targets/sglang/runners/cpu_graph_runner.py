"""`CPUGraphRunner`: the runner for compiled forwards on CPUs.

It keeps one compiled forward for each batch size and pads a batch into the inputs it captured. What
compiles is left out: the forward runs as it is, and the inputs it is handed are judged; the
attention backend only records. There is no device graph. Releases that capture every size up to a
limit get the case's sizes, as later ones get them from the server.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import LONGEST_CONTEXT, EngineConfig
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.observation import Observation
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.demands import demand_key
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.recording import recording_backend
from fuzzgraph.targets.sglang.decode_session import DecodeSession
from fuzzgraph.targets.sglang.excuses.decode import CPU_GRAPH_EXCUSES
from fuzzgraph.targets.sglang.fields import input_fields
from fuzzgraph.targets.sglang.release import engine_module, release
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, no_forward
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.world import Batch

RUNNER_MODULE = "sglang.srt.model_executor.cpu_graph_runner"
_HANDED = ("input_ids", "positions", "req_pool_indices", "seq_lens", "out_cache_loc")


@contextlib.contextmanager
def _uncompiled(model: Any, *_: Any, **__: Any) -> Iterator[Any]:
    """In place of `patch_model`, which compiles the forward."""
    yield model.forward


class CpuGraphRunnerDriver(RunnerDriver):
    """`CPUGraphRunner` with all sizes captured."""

    width = 1  # a CPU server does not speculate

    def __init__(self, runner: ModelRunner, config: EngineConfig) -> None:
        module = engine_module(RUNNER_MODULE)
        runner.model = Stub(forward=no_forward, shared_experts_config=None)
        sizes = list(config.capture_bs)
        replaced = {"patch_model": _uncompiled, "get_batch_sizes_to_capture": lambda _: sizes}
        with replaced_names([module], replaced):
            self._engine = module.CPUGraphRunner(runner)
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

    def prepare(self, forward_batch: Any) -> None:
        skips = getattr(self._engine, "_get_skip_cross_attention", None)
        arguments = {} if skips is None else {"skip": skips(forward_batch)}
        self.prepared = self._engine.prepare_replay(forward_batch, **arguments)

    def replay(self) -> Any:
        size = self.prepared.batch_size
        forward = demand_key(self._engine.graphs, size, "graph", "a replay")
        return forward(self.prepared.input_ids, self.prepared.positions, self.prepared)


class CpuGraphTarget(SglangTarget):
    """The CPU-graph runner of the sglang release that this process holds."""

    about = "inputs of CPUGraphRunner, decode"
    also_stood_in_for = ("the attention backend", "compilation")
    excuses = CPU_GRAPH_EXCUSES
    capabilities = Capabilities(
        runners=("graph", "cpu_graph"),  # it is the one, and saved cases call it either
        max_batch=16,
        max_context_len=LONGEST_CONTEXT,
        seq_len_fill_values=(1, 0),
        mrope=True,
        capture_beyond_pool=False,
    )

    def __init__(self, name: str) -> None:
        self.name = name

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> CpuGraphSession:
        return CpuGraphSession(config, graphs)

    def modules(self) -> tuple[str, ...]:
        return (RUNNER_MODULE,)

    def load(self) -> None:
        super().load()
        if not hasattr(engine_module(RUNNER_MODULE).CPUGraphRunner, "prepare_replay"):
            raise AdapterUnavailable(
                f"sglang {release()} pads no batch in its CPUGraphRunner, so target {self.name!r} "
                "has nothing to judge. Name a later release: fuzzgraph targets lists them."
            )


class CpuGraphSession(DecodeSession):
    """One CPU-graph runner whose backend only looks on."""

    inputs = _HANDED
    runner: CpuGraphRunnerDriver

    def __init__(self, config: EngineConfig, graphs: GraphEngine) -> None:
        declared = input_fields(config, config.seq_len_fill_value)
        self.fields = tuple(field for field in declared if field.name in _HANDED)
        super().__init__(config, graphs, backend="torch_native")

    def _open_backend(self, runner: ModelRunner) -> Any:
        return recording_backend(self._config.seq_len_fill_value)

    def _open_runner(self, graphs: GraphEngine) -> Any:
        return CpuGraphRunnerDriver(self._model_runner, self._config)

    def _input(self, name: str, padded_bs: int) -> torch.Tensor:
        found: torch.Tensor = getattr(self.runner.prepared, name)
        return found

    def observe(self, batch: Batch) -> Observation:
        seen = super().observe(batch)
        seen.compiled_forwards = 0 if self.ran_eagerly else 1
        return seen

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """A compiled forward is handed its inputs; it froze no addresses."""
        return {}

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {}
