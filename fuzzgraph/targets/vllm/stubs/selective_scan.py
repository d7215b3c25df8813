"""Prompts of Mamba1, by a model of their compiled kernel. They run beside captured graphs only."""

from __future__ import annotations

from fuzzgraph.kernel_models.selective_scan import selective_scan_fwd
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.vllm.release import engine_module

__all__ = ["put_selective_scan"]

_OPERATORS = "vllm._custom_ops"


def put_selective_scan() -> None:
    """Put the model in the place of the operator; once per process, before a session opens."""
    put_model(engine_module(_OPERATORS), "selective_scan_fwd", selective_scan_fwd)
