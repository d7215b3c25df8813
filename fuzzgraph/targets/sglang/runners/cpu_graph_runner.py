"""Metadata target `sglang-cpu-graph`: the runner for compiled forwards on CPUs.

The release's own `CPUGraphRunner` pads and fills the inputs that it captured; its attention backend
only records. There is no device graph: what is judged is what the compiled forward is handed.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.target import ReleasedTarget
from fuzzgraph.targets.sglang.backends.recording import recording_backend
from fuzzgraph.targets.sglang.decode_session import DecodeSession, load_once
from fuzzgraph.targets.sglang.fields import input_fields
from fuzzgraph.targets.sglang.release import engine_module, release
from fuzzgraph.targets.sglang.runners.cpu_graph_driver import RUNNER_MODULE, CpuGraphRunnerDriver
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

__all__ = ["CpuGraphSession", "CpuGraphTarget"]

_HANDED = ("input_ids", "positions", "req_pool_indices", "seq_lens", "out_cache_loc")


class CpuGraphTarget(ReleasedTarget):
    """The CPU-graph runner of the sglang release that this process holds."""

    name = "sglang-cpu-graph"
    about = "CPUGraphRunner's inputs of compiled forwards, decode; no outputs"
    capabilities = Capabilities(
        runners=("graph", "cpu_graph"),  # it is the one, and saved cases call it either
        max_batch=16,
        max_context_len=64,
        seq_len_fill_values=(1, 0),
        mrope=True,
        capture_beyond_pool=False,
    )

    def _session(self, config: EngineConfig, graphs: GraphEngine) -> CpuGraphSession:
        return CpuGraphSession(config, graphs)

    def load(self) -> None:
        """Import the release of this process; `open` does it where nobody has."""
        load_once(RUNNER_MODULE)
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

    def captured_addresses(self) -> Mapping[str, tuple[torch.Tensor, int]]:
        """A compiled forward is handed its inputs; it froze no addresses."""
        return {}

    def capture_values(self, batch: Batch) -> Mapping[str, torch.Tensor]:
        return {}
