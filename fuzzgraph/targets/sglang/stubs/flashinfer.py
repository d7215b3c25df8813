"""Where sglang looks FlashInfer's wrappers up."""

from __future__ import annotations

from fuzzgraph.targets.offline.flashinfer_wrappers import install_wrappers
from fuzzgraph.targets.sglang.release import engine_module, has_module

_BACKENDS = tuple(
    f"sglang.srt.layers.attention.{name}"
    for name in ("flashinfer_backend", "flashinfer_mla_backend")
)


def install_flashinfer() -> None:
    """Where FlashInfer is not installed, the engine finds stand-ins under its names."""
    install_wrappers(engine_module(name) for name in _BACKENDS if has_module(name))
