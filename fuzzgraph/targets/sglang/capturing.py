"""Whether the engine captures a graph now, as its own layers ask."""

from __future__ import annotations

from fuzzgraph.targets.sglang.release import engine_module, has_module

_MODES = (
    "sglang.srt.model_executor.runner_utils.capture_mode",
    "sglang.srt.model_executor.cuda_graph_runner",
)
"""Where the engine says that it captures, by release."""


def captures() -> bool:
    """Whether the engine captures: then nothing on a device may decide what runs."""
    module = engine_module(next(name for name in _MODES if has_module(name)))
    return bool(module.get_is_capture_mode())
