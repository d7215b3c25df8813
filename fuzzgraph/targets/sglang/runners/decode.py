"""Opens the decode runner that the release of this process has, whatever it is called there."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.release import has_module
from fuzzgraph.targets.sglang.runners import cuda_graph_runner, decode_cuda_graph_runner
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.capture import forget_input_buffers
from fuzzgraph.targets.sglang.runners.cuda_graph_runner import CudaGraphRunnerDriver
from fuzzgraph.targets.sglang.runners.decode_cuda_graph_runner import DecodeCudaGraphRunnerDriver
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner


def runner_module() -> str:
    """The module that holds the decode runner of this release."""
    if has_module(decode_cuda_graph_runner.RUNNER_MODULE):
        return decode_cuda_graph_runner.RUNNER_MODULE
    return cuda_graph_runner.RUNNER_MODULE


def open_decode_runner(
    runner: ModelRunner,
    config: EngineConfig,
    graphs: GraphEngine,
    on_capture: Callable[[Any], None],
) -> RunnerDriver:
    """A decode runner of this release on `runner.attn_backend`, nothing captured yet.

    Args:
        runner: with its attention backend.
        config: of the case.
        graphs: captures and replays.
        on_capture: called with the key of each graph as soon as it is captured.
    """
    forget_input_buffers()
    if has_module(decode_cuda_graph_runner.RUNNER_MODULE):
        return DecodeCudaGraphRunnerDriver(runner, config, graphs, on_capture)
    return CudaGraphRunnerDriver(runner, config, graphs, on_capture)
