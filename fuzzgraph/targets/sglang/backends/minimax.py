"""MiniMax-M3's attention: a layer that sees all keys, and one that selects blocks of them.

As servers have it on a Hopper: `MiniMaxHybridAttnBackend`, made by the engine's own
`attn_backend_wrapper`, with `FlashAttentionBackend` for the layer that sees all keys and
`MiniMaxSparseAttnBackend` for the other, whose Triton kernels score blocks and attend. Where a GPU
of NVIDIA's is no Hopper, the first layer is on FlashInfer here, kernels are others, and beside keys
in FP8 index keys stay in the model's dtype (sglang 0.5.23 memory_pool.py,
`get_minimax_sparse_index_dtype`). Real is the engine's `MiniMaxSparseKVPool` too. Modelled: the
first layer's kernels, the store of a token's three rows, and the selection of blocks. Stood in for
are the indexer's projections (`selected_blocks_model`).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Mapping
from dataclasses import replace
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import INDEXED_CONTEXT
from fuzzgraph.kernel_models.block_topk import select_blocks
from fuzzgraph.kernel_models.index_key_store import store_with_index_key
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.dense_layer import DENSE_OUTPUT, INDEX_KEYS, LAYER_STRAYS
from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.sglang.backends.attention_backend import (
    FP8_KV,
    AttentionBackend,
    BackendTarget,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA3
from fuzzgraph.targets.sglang.backends.flashinfer import FLASHINFER
from fuzzgraph.targets.sglang.backends.left_keys import LeftKeysSession
from fuzzgraph.targets.sglang.release import demand_release, engine_module, has_module
from fuzzgraph.targets.sglang.selected_blocks_model import SelectedBlocksModel, split_dense
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.sparse_pool import sparse_description
from fuzzgraph.world import Batch

__all__ = [
    "MINIMAX",
    "SPARSE_BACKEND",
    "SPARSE_FP8",
    "SPARSE_SIZES",
    "MinimaxFlashInferTarget",
    "MinimaxSession",
    "MinimaxTarget",
    "beside_sparse",
    "describe_sparse",
    "on_hopper",
    "refuses_sparse",
]

SPARSE_BACKEND = "sglang.srt.layers.attention.minimax_sparse_backend"
_REGISTRY = "sglang.srt.layers.attention.attention_registry"
_CONTEXT = "sglang.srt.runtime_context"
_STORES = (
    "sglang.kernels.ops.kvcache.minimax_store_kv_index",
    "sglang.jit_kernel.minimax_store_kv_index",
)
_SELECTIONS = (
    "sglang.kernels.ops.attention.minimax_decode_topk",
    "sglang.jit_kernel.minimax_decode_topk",
)
"""Modules that compile both, the newest first."""
_SCORES = "sglang.kernels.ops.attention.minimax_sparse.decode.flash_with_topk_idx"
_HEAD = (128, 128)
"""As wide as an index key: then a token's rows are stored by one launch."""


def _store(compiled: Compiled) -> Any:
    casts = bool(compiled.number("kCastFp8")) if "kCastFp8" in compiled.template else False
    head_bytes = compiled.number("kHeadBytes")
    return functools.partial(store_with_index_key, head_bytes=head_bytes, casts=casts)


def _selection(compiled: Compiled) -> Any:
    return functools.partial(select_blocks, lens_dtype=compiled.dtype("SeqLenT"))


_COMPILED: Makers = {"store_kv_index": _store, "minimax_decode_topk": _selection}


def _put_models() -> None:
    """Models in the places of what the engine compiles for these layers."""
    for places in (_STORES, _SELECTIONS):
        compile_to_models(next(engine_module(n) for n in places if has_module(n)), _COMPILED)
    selection: Any = next(engine_module(name) for name in _SELECTIONS if has_module(name))
    selection.minimax_decode_topk = tensors_claim_cuda(selection.minimax_decode_topk)


def _tune_as_devices_do() -> None:
    """Scores by no config whose keys at once are fewer than a block's.

    Before 0.5.20 the engine leaves it to the device's tuner to drop those, which do not compile
    (`tl.static_assert` in `_decode_score_kernel`); the interpreter takes the first config.
    """
    tuner = engine_module(_SCORES)._decode_score_kernel.fn
    if tuner.early_config_prune is None:
        tuner.early_config_prune = _of_whole_blocks


def _of_whole_blocks(configs: list[Any], given: dict[str, Any], **more: Any) -> list[Any]:
    return [each for each in configs if each.kwargs["BLOCK_SIZE_N"] >= given["block_size"]]


def describe_sparse(runner: ModelRunner) -> None:
    """Tell the engine of a model with both layers, and put models where it would compile."""
    model = runner.model_config
    model.quantization = None
    model.hf_config.architectures = ["MiniMaxM3SparseForCausalLM"]
    model.hf_config.sparse_attention_config = sparse_description(runner.configuration.config)
    if runner.device == "cpu":
        _put_models()
        _tune_as_devices_do()


def beside_sparse(runner: ModelRunner, dense: Any) -> Any:
    """The engine's own backend for both layers, with `dense` for the one that sees all keys."""
    return engine_module(_REGISTRY).attn_backend_wrapper(runner, dense)


def on_hopper() -> contextlib.AbstractContextManager[Any]:
    """As on a Hopper, which from 0.5.23 on has kernels of its own for blocks within a page."""
    context = engine_module(_CONTEXT)
    if not hasattr(context, "override_platform") or torch.cuda.is_available():
        return contextlib.nullcontext()
    hopper: contextlib.AbstractContextManager[Any] = context.override_platform(is_sm90=True)
    return hopper


def refuses_sparse(config: EngineConfig) -> str | None:
    """Why no model with both layers has a config; None if one may."""
    if not config.index_block:
        return "the model has a layer that selects blocks: index_block must not be 0"
    if (config.head_dim, config.v_head_dim) != _HEAD:
        return f"keys and values of MiniMax's heads have {_HEAD[0]} columns"
    return None


SPARSE_SIZES: Mapping[str, Any] = MappingProxyType({
    "dtypes": ("bfloat16", "float16"),
    "head_dims": (_HEAD,),
    "index_blocks": (16, 128),
    "index_topks": (1, 2, 3, 16),
})  # fmt: skip
"""Capabilities of every target with such layers."""
SPARSE_FP8: Mapping[str, Any] = MappingProxyType({**dict(FP8_KV[1:]), "unit_kv_scales": True})
"""Capabilities where the layer that sees all keys takes them in FP8 as well."""


def _beside_sparse(dense: AttentionBackend, modelled: str) -> AttentionBackend:
    """A model with both layers, where the one that sees all keys is on `dense`.

    Args:
        modelled: what of `dense` has a model.
    """
    return replace(
        dense,
        part=" beside sparse layers",
        page_sizes=(1, 16, 32, 128),
        fields=tuple(name for name in dense.fields if "window" not in name and "swa" not in name),
        held=lambda backend, size: dense.held(backend.dense, size),
        max_context_len=INDEXED_CONTEXT,
        max_topk=1,
        windows=False,
        caps=False,
        unified=False,
        stood_in_for=(
            f"{modelled}, the store of keys and the selection of blocks, by models",
            "the indexer's projections",
        ),
        refuses=refuses_sparse,
        adapt=describe_sparse,
        model=SelectedBlocksModel,
        beside=(),
        more=(*SPARSE_SIZES.items(), *SPARSE_FP8.items()),
        # What kernels round is worked out for the first layer; this backend computes the second.
        fp8_weights=None,
        widens_fp8=False,
        on_device=(),
    )


MINIMAX = _beside_sparse(FA3, "FlashAttention 3")
MINIMAX_FLASHINFER = _beside_sparse(FLASHINFER, "FlashInfer's wrappers")


class MinimaxSession(LeftKeysSession):
    """One hybrid backend and one decode runner with its captured graphs."""

    also_promised = (DENSE_OUTPUT, INDEX_KEYS, LAYER_STRAYS)

    def _open_backend(self, runner: ModelRunner) -> Any:
        return beside_sparse(runner, super()._open_backend(runner))

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        device = on_hopper() if self._kind.name == FA3.name else contextlib.nullcontext()
        with device, super().engine_runs(batch):
            yield

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        return split_dense(outputs, self._config)


class MinimaxTarget(BackendTarget):
    """Both layers on the sglang release that this process holds, in one mode."""

    def __init__(self, name: str, mode: Mode, backend: AttentionBackend = MINIMAX) -> None:
        super().__init__(name, backend, mode)
        self.about = f"MiniMax's sparse attention beside {backend.name}, {mode} graphs"
        self.capabilities = self.capabilities.replace(later_stages=False, two_batch_overlap=False)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> MinimaxSession:
        return MinimaxSession(config, graphs, self.backend)

    def modules(self) -> tuple[str, ...]:
        return (*super().modules(), SPARSE_BACKEND)


class MinimaxFlashInferTarget(MinimaxTarget):
    """The same on a GPU that is no Hopper."""

    def __init__(self, name: str, mode: Mode) -> None:
        super().__init__(name, mode, MINIMAX_FLASHINFER)

    def modules(self) -> tuple[str, ...]:
        demand_release(
            (0, 5, 17), "tells FlashInfer nothing of how these pools quantise", self.name
        )
        return super().modules()
