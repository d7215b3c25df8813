"""MiniMax-M3's attention where the layer that sees all keys is on Triton: with ROCm, and elsewhere.

With ROCm Triton is what the engine chooses (`arg_groups/model_overrides/minimax_m3.py`), and only
there `MiniMaxSparseAttnBackend` captures verifies: each draft token is a row of its own decode
kernels, with a length of its own (0.5.23 `_init_rocm_linear_verify_metadata`). On CUDA a captured
verify has no lengths of new tokens, for which `forward_extend` asks. Real are the hybrid backend,
Triton attention and all kernels of Triton, and the engine's pool; modelled are the store of a
token's three rows, which CUDA has alone, and the selection of blocks. Kernels are tuned as on CUDA,
because the engine asks for ROCm when it is imported.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import INDEXED_CONTEXT
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.dense_layer import DENSE_OUTPUT, INDEX_KEYS, LAYER_STRAYS
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.left_keys import LeavesKeys
from fuzzgraph.targets.sglang.backends.minimax import (
    SPARSE_BACKEND,
    SPARSE_SIZES,
    beside_sparse,
    describe_sparse,
    refuses_sparse,
)
from fuzzgraph.targets.sglang.backends.triton import OF_ONE_RANK, TritonSession, TritonTarget
from fuzzgraph.targets.sglang.release import demand_release, engine_module
from fuzzgraph.targets.sglang.selected_blocks_model import SelectedBlocksModel, split_dense
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.world import Batch

__all__ = ["MinimaxTritonSession", "MinimaxTritonTarget"]

_POOLS = "sglang.srt.mem_cache.memory_pool"
_ON_ROCM = {"_is_cuda": False, "_is_hip": True}
_VERIFIES = 0, 5, 22


def _yes() -> bool:
    return True


class MinimaxTritonSession(LeavesKeys, TritonSession):
    """The engine's hybrid backend on Triton attention, and one runner with its captured graphs."""

    model_class = SelectedBlocksModel
    also_promised = (DENSE_OUTPUT, INDEX_KEYS, LAYER_STRAYS)

    def _open_backend(self, runner: ModelRunner) -> Any:
        describe_sparse(runner)
        return beside_sparse(runner, super()._open_backend(runner))

    @property
    def _triton(self) -> Any:
        return self._own_backend.dense

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        """With ROCm the pool stores by torch, and the sparse backend knows where it is."""
        with contextlib.ExitStack() as around:
            if self._config.platform == "rocm":
                replaced = replaced_names([engine_module(_POOLS)], _ON_ROCM)
                around.enter_context(replaced)
                replaced = replaced_names([engine_module(SPARSE_BACKEND)], {"is_hip": _yes})
                around.enter_context(replaced)
            around.enter_context(super().engine_runs(batch))
            yield

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        return split_dense(outputs, self._config)


class MinimaxTritonTarget(TritonTarget):
    """Both layers on the sglang release that this process holds, in one mode."""

    any_page_size = False
    also_stood_in_for = (
        "the number of cores",
        "the store of keys and the selection of blocks, by models",
        "the indexer's projections",
    )

    def __init__(self, name: str, mode: Literal["decode", "target_verify"]) -> None:
        super().__init__(name, mode)
        self.about = f"MiniMax's sparse attention beside triton, {mode} graphs"
        verifies = mode == "target_verify"
        self.capabilities = self.capabilities.replace(
            **{
                **OF_ONE_RANK,
                **SPARSE_SIZES,
                "dtypes": ("float16",),  # of `TritonTarget`'s, the one that sparse kernels take
                "layer_types": False,
                "max_context_len": INDEXED_CONTEXT,
                "max_head_dim": 128,
                "page_sizes": (1, 16, 32, 128),
                "platforms": ("rocm",) if verifies else ("cuda", "rocm"),
            }
        )

    def refused(self, config: EngineConfig) -> str | None:
        return super().refused(config) or refuses_sparse(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> MinimaxTritonSession:
        return MinimaxTritonSession(config, graphs)

    def modules(self) -> tuple[str, ...]:
        if self.mode == "target_verify":
            demand_release(_VERIFIES, "captures no verifies of sparse attention", self.name)
        return (*super().modules(), SPARSE_BACKEND)
