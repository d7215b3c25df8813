"""Models of what sglang compiles to select keys by a plan (`SGLANG_OPT_USE_TOPK_V2`).

The engine's own wrappers run: they say how large a plan is, and what they compile.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.kernel_models import planned_topk
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models

__all__ = ["PLANNED_TOPK", "chosen_topk", "compile_planned_topk", "count_clusters", "topk_module"]

_TOPK_PLACES = (
    "sglang.kernels.ops.attention.dsv4.topk",
    "sglang.jit_kernel.dsv4.topk",
    "sglang.jit_kernel.deepseek_v4",
)
"""Modules that compile it, the newest first."""
_OCCUPANCY = "sglang.kernels.jit.utils.occupancy"
_SWITCH = "SGLANG_OPT_USE_TOPK_V2"
_PORTABLE = 8
"""Blocks of the clusters that the pool has; of wider ones the GPU of `cuda_on_cpu` has none."""


def _planner(compiled: Compiled) -> Any:
    return planned_topk.plan_topk


def _transform(compiled: Compiled) -> Any:
    def transform(*args: Any) -> None:
        given = compiled.by_name(args)
        given.pop("workspace", None)  # up to 0.5.14 memory between the two kernels
        planned_topk.transform_planned(**given)

    return transform


def _clusters(compiled: Compiled) -> Any:
    def count(cluster_size: int, occupancy: int) -> int:
        return planned_topk.PLANNING_CLUSTERS if cluster_size == _PORTABLE else 0

    return count


PLANNED_TOPK: Makers = {
    f"{kernel}::{method}": made
    for kernel in ("TopKKernel", "CombinedTopKKernel")
    for method, made in (
        ("plan", _planner), ("transform", _transform), ("transform_paged", _transform)
    )
}  # fmt: skip
"""What the engine compiles for it, under the names that the releases give it."""


def topk_module() -> Any:
    """The engine's module that compiles the selection of keys; None where a release has none."""
    return next((engine_module(name) for name in _TOPK_PLACES if has_module(name)), None)


def compile_planned_topk() -> None:
    """Have the engine compile the selection to models, for the life of the process."""
    module = topk_module()
    if module is not None:
        compile_to_models(module, PLANNED_TOPK)
    count_clusters()


def count_clusters() -> None:
    """Have the engine find as many clusters on its GPU as the model plans for."""
    if has_module(_OCCUPANCY):
        makers = {"get_max_active_clusters": _clusters}
        compile_to_models(engine_module(_OCCUPANCY), makers)


def chosen_topk(config: EngineConfig) -> dict[str, str]:
    """What has the engine select as the case says, whatever its release does by itself."""
    return {_SWITCH: "1" if config.topk_kernel == "planned" else "0"}
