"""What a vLLM worker process has beside its runner: groups of one rank, a workspace, idle steps."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.vllm.release import engine_module

WORKER = "vllm.v1.worker.gpu_worker"
_STATE = "vllm.distributed.parallel_state"
_WORKSPACE = "vllm.v1.worker.workspace"
_MAKERS = ("_get_trtllm_workspace_buffer", "_get_trtllm_gen_workspace_buffer")
_BUFFERS = ("trtllm_workspace_buffer", "trtllm_gen_workspace_buffer", "_fi_multi_ctas_kv_counter")


def join_groups(alone: Callable[[], Any]) -> None:
    """Make this process the only rank of every group; once per process.

    Args:
        alone: makes the configuration of a server with one process.
    """
    state = engine_module(_STATE)
    if state.model_parallel_is_initialized():
        return
    config = engine_module("vllm.config")
    # What the groups hold belongs to the process, not to the session that came first.
    with (
        _disable_current_modes(),
        config.set_current_vllm_config(alone()),
        tempfile.TemporaryDirectory() as folder,
    ):
        state.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        state.initialize_model_parallel(1, 1)


def run_dummy_batch(runner: Any) -> None:
    """What a worker has its runner do where its rank has nothing to run; how many tokens that are
    is the release's own."""
    worker = Stub(model_runner=runner, use_v2_model_runner=False, randomize_dummy_inputs=False)
    engine_module(WORKER).Worker.execute_dummy_batch(worker)


class Workspace:
    """The scratch memory that layers of one worker share: each session has its own."""

    def __init__(self, device: torch.device) -> None:
        module = engine_module(_WORKSPACE)
        module.reset_workspace_manager()
        module.init_workspace_manager(device, 1)
        self.manager = module._manager

    def use(self) -> None:
        """Sessions share the process."""
        engine_module(_WORKSPACE)._manager = self.manager


class BackendBuffers:
    """Buffers that a backend keeps in its module, for all layers of a worker: each session has its
    own."""

    def __init__(self, backend: str) -> None:
        self._module = engine_module(backend.rpartition(".")[0])
        self._held = {name: None for name in _BUFFERS if hasattr(self._module, name)}

    def make(self) -> None:
        """Make what the backend makes at the first call of an operator, inside of which torch asks
        nobody what `cuda` means."""
        for name in _MAKERS:
            if hasattr(self._module, name):
                getattr(self._module, name)()

    @contextlib.contextmanager
    def inside(self) -> Iterator[None]:
        """Sessions share the process."""
        vars(self._module).update(self._held)
        try:
            yield
        finally:
            self._held = {name: getattr(self._module, name) for name in self._held}
