"""Prompts of the gated delta rule, by a model of their chunked kernels.

Those kernels refuse float32, and Triton's interpreter cannot run them: they convert the counter of
a loop. They run beside captured graphs only.
"""

from __future__ import annotations

from fuzzgraph.kernel_models.gated_delta import chunk_gated_delta_rule
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.vllm.release import engine_module

__all__ = ["put_chunk_rule"]


def put_chunk_rule(layer_module: str) -> None:
    """Put the model in the module of the layer; once per process, before a session opens."""
    module = engine_module(layer_module)
    put_model(module, "fla_chunk_gated_delta_rule", chunk_gated_delta_rule)
