"""Scratch memory of compiled kernels, which backends allocate by the hundred MiB and share.

On a CPU no kernel runs, so it is kept small; and it is forgotten with every session, because
sessions stand for processes and their memory goes with them.
"""

from __future__ import annotations

import os
from typing import Any

import torch

from fuzzgraph.targets.sglang.release import engine_module, has_module

FLASHINFER_BYTES = 4096
"""Of FlashInfer's float workspace, in place of 384 MiB. No model reads it."""
_ON_DEVICE_MIB = 64
"""Where kernels run, in place of 128 to 512: guarded memory is copied at each step, and cases have
few keys, whose parts that plans put there take less."""
_SETTING = "SGLANG_FLASHINFER_WORKSPACE_SIZE"
"""What the engine reads from the environment, in bytes."""
_CONTEXT = "sglang.srt.runtime_context"
_MIB = "DEFAULT_WORKSPACE_SIZE_MB"
_KEPT = ("global_workspace_buffer", "global_zero_init_workspace_buffer")
_HOLDERS = tuple(
    f"sglang.srt.layers.attention.{name}_backend"
    for name in ("flashinfer", "flashinfer_mla", "trtllm_mha", "trtllm_mla")
)


def keep_workspaces_small() -> None:
    """Set what the engine reads from the environment, for the life of the worker."""
    engine_module("sglang.srt.environ")  # looks at what the shell has set
    on_device = torch.cuda.is_available()
    size = _ON_DEVICE_MIB << 20 if on_device else FLASHINFER_BYTES
    os.environ[_SETTING] = str(size)


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
        if hasattr(holder, _MIB):
            setattr(holder, _MIB, _ON_DEVICE_MIB if torch.cuda.is_available() else 1)
    context = getattr(engine_module(_CONTEXT), "_CONTEXT", None) if has_module(_CONTEXT) else None
    getattr(getattr(context, "resources", None), "buffers", {}).clear()
