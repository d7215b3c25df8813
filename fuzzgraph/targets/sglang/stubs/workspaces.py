"""Scratch memory of compiled kernels, which backends allocate by the hundred MiB and share.

It is kept small: on a CPU no kernel runs, and on a device batches are a few rows. It is forgotten
with every session, because sessions stand for processes and their memory goes with them.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from fuzzgraph.targets.sglang.release import engine_module, has_module

FLASHINFER_BYTES = 4096
"""Of FlashInfer's float workspace, in place of 384 MiB. No model reads it."""
_DEVICE_BYTES = 32 << 20
"""Of the same on a device, whose planner takes parts of it for the sums of split rows."""
_SETTING = "SGLANG_FLASHINFER_WORKSPACE_SIZE"
"""What the engine reads from the environment, in bytes."""
_CONTEXT = "sglang.srt.runtime_context"
_MIB = "DEFAULT_WORKSPACE_SIZE_MB"
_KEPT = ("global_workspace_buffer", "global_zero_init_workspace_buffer")
_HOLDERS = tuple(
    f"sglang.srt.layers.attention.{name}_backend"
    for name in ("flashinfer", "flashinfer_mla", "trtllm_mha", "trtllm_mla")
)


def keep_workspaces_small(**more: str) -> None:
    """Set what the engine reads from the environment, for the life of the worker.

    Args:
        more: settings of one backend.
    """
    engine_module("sglang.srt.environ")  # looks at what the shell has set
    size = _DEVICE_BYTES if torch.cuda.is_available() else FLASHINFER_BYTES
    os.environ.update({_SETTING: str(size), **more})


def forget_workspaces(module: Any) -> None:
    """Let the next backend allocate its own.

    Args:
        module: of the backend; what it is derived from has scratch memory too.
    """
    holders = [engine_module(name) for name in _HOLDERS if has_module(name)]
    for holder in (module, *holders):
        for name in _KEPT:
            if hasattr(holder, name):
                setattr(holder, name, None)
        if hasattr(holder, _MIB) and not torch.cuda.is_available():
            setattr(holder, _MIB, 1)
    context = getattr(engine_module(_CONTEXT), "_CONTEXT", None) if has_module(_CONTEXT) else None
    getattr(getattr(context, "resources", None), "buffers", {}).clear()
