"""What a vLLM worker process has beside its runner: groups of one rank, a workspace."""

from __future__ import annotations

import tempfile
from typing import Any

import torch
from torch.utils._python_dispatch import _disable_current_modes

from fuzzgraph.targets.vllm.release import engine_module

_STATE = "vllm.distributed.parallel_state"
_WORKSPACE = "vllm.v1.worker.workspace"


def join_groups(vllm_config: Any) -> None:
    """Make this process the only rank of every group; once per process."""
    state = engine_module(_STATE)
    if state.model_parallel_is_initialized():
        return
    config = engine_module("vllm.config")
    # What the groups hold belongs to the process, not to the session that came first.
    with (
        _disable_current_modes(),
        config.set_current_vllm_config(vllm_config),
        tempfile.TemporaryDirectory() as folder,
    ):
        state.init_distributed_environment(1, 0, f"file://{folder}/rendezvous", 0, "gloo")
        state.initialize_model_parallel(1, 1)


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
