"""Prefill graphs of MiniMax-M3's attention, which break at both of its layers.

The release's own runner pads tokens to a captured count. At each break `MiniMaxHybridAttnBackend`
runs anew, on a batch that nobody has padded: FlashAttention 3 for the layer that sees all keys,
and for the other one `MiniMaxSparseAttnBackend`, whose Triton kernels score the blocks of each new
token's keys, select some and attend to them (`minimax_sparse/prefill`). Engines capture prompts of
this model (sglang 0.5.23 model_config.py, `multimodal_breakable_cuda_graph_supported_model_archs`).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.reference.dense_layer import DENSE_OUTPUT, INDEX_KEYS, LAYER_STRAYS
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.used import below_lengths
from fuzzgraph.targets.sglang.attention_model import PrefillModel
from fuzzgraph.targets.sglang.backends.attention_backend import open_backend
from fuzzgraph.targets.sglang.backends.left_keys import LeavesKeys
from fuzzgraph.targets.sglang.backends.minimax import (
    MINIMAX,
    SPARSE_BACKEND,
    SPARSE_FP8,
    SPARSE_SIZES,
    beside_sparse,
    on_hopper,
    refuses_sparse,
)
from fuzzgraph.targets.sglang.release import demand_release
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import BREAKABLE
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession, input_fields
from fuzzgraph.targets.sglang.selected_blocks_model import SelectedBlocksModel, split_dense
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.platform import cuda_server

__all__ = ["MinimaxPrefillTarget"]

_MADE_ANEW = "sglang flashattention_backend.py init_forward_metadata: of the batch at each prefill"


class MinimaxPrefillModel(PrefillModel):
    """Both layers, where prefill runners look for a body."""

    kind = SelectedBlocksModel


class MinimaxPrefillSession(LeavesKeys, PrefillSession):
    """An opened runner on the engine's hybrid backend."""

    attention = MINIMAX.name
    # What the engine settles for a model without latent attention (model_runner_components
    # misc_utils.py, maybe_disable_chunked_prefix_cache).
    arguments = MappingProxyType({"disable_chunked_prefix_cache": True})
    model = MinimaxPrefillModel
    also_promised = (DENSE_OUTPUT, INDEX_KEYS, LAYER_STRAYS)

    @staticmethod
    def declared(config: EngineConfig) -> tuple[Field, ...]:
        return (
            *input_fields(config),
            fields.lengths("cache_seqlens", fill=0, repeats="seq_lens", source=_MADE_ANEW),
            fields.offsets(
                "cu_seqlens_q", repeats="new_lens", padding=fields.FREE, source=_MADE_ANEW
            ),
            fields.offsets(
                "cu_seqlens_k", repeats="seq_lens", padding=fields.FREE, source=_MADE_ANEW
            ),
            fields.page_table(source=_MADE_ANEW),
        )

    @contextlib.contextmanager
    def engine_runs(self) -> Iterator[None]:
        with on_hopper(), cuda_server():
            yield

    def _open_backend(self, runner: ModelRunner) -> Any:
        return beside_sparse(runner, open_backend(MINIMAX, runner))

    def _attention_metadata(self) -> dict[str, torch.Tensor]:
        found = MINIMAX.read(self.backend.dense.forward_metadata)
        used = {name: tensor.clone() for name, tensor in found.items()}
        lens, page = used["cache_seqlens"], self._config.page_size
        used["page_table"] = below_lengths(used["page_table"], lens, page, 1)
        return used

    def plan(self) -> dict[str, object]:
        return {"max_seq_len_q": int(self.backend.dense.forward_metadata.max_seq_len_q)}

    def named_outputs(self, outputs: Any) -> dict[str, torch.Tensor]:
        return split_dense(outputs, self._config)


class MinimaxPrefillTarget(PrefillTarget):
    """Prefill graphs of both layers on the sglang release that this process holds."""

    any_page_size = False
    attends_alone = False

    def __init__(self, name: str, kind: str = BREAKABLE.name) -> None:
        super().__init__(name, kind)
        (graphs,) = self.capabilities.prefill_runners
        self.about = f"{graphs} prefill graphs, MiniMax's sparse attention beside fa3"
        self.also_stood_in_for = (*self.also_stood_in_for, *MINIMAX.stood_in_for)
        self.capabilities = self.capabilities.replace(
            **{
                **SPARSE_SIZES,
                **SPARSE_FP8,
                "page_sizes": MINIMAX.page_sizes,
                "max_head_dim": 128,
                "images": False,
                "row_mixings": ("none",),
            }
        )

    def refused(self, config: EngineConfig) -> str | None:
        return super().refused(config) or refuses_sparse(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> MinimaxPrefillSession:
        return MinimaxPrefillSession(config, graphs, self._kind)

    def modules(self) -> tuple[str, ...]:
        # Before, engines capture no prompts of this model (model_config.py,
        # multimodal_breakable_cuda_graph_supported_model_archs), nor break at its sparse layer.
        demand_release((0, 5, 22), "breaks no prefills at sparse attention", self.name)
        return (MINIMAX.place()[0], *super().modules(), SPARSE_BACKEND)
