"""Where sglang looks FlashInfer's wrappers up."""

from __future__ import annotations

import sys
import types

from fuzzgraph.targets.offline.flashinfer_wrappers import install_wrappers
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.workspaces import FLASHINFER_BYTES

_BACKENDS = tuple(
    f"sglang.srt.layers.attention.{name}"
    for name in ("flashinfer_backend", "flashinfer_mla_backend")
)


_SERVERS_BYTES = 384 << 20
"""sglang environ.py SGLANG_FLASHINFER_WORKSPACE_SIZE, all releases."""


def package(part: str = "") -> types.ModuleType:
    """FlashInfer or a module of it, from which the engine imports a kernel when it calls it; an
    empty one where none is loaded.

    Args:
        part: name of the module in the package.
    """
    whole = sys.modules.setdefault("flashinfer", types.ModuleType("flashinfer"))
    if not part:
        return whole
    name = f"flashinfer.{part}"
    found = sys.modules.setdefault(name, types.ModuleType(name))
    setattr(whole, part, found)
    return found


def install_flashinfer() -> None:
    """Where FlashInfer is not installed, the engine finds models of it under its names."""
    modules = (engine_module(name) for name in _BACKENDS if has_module(name))
    install_wrappers(modules, FLASHINFER_BYTES, _SERVERS_BYTES)
