"""Target `sglang-dsv4-prefill`: breakable prefill graphs of DeepSeek V4's attention.

Servers take graphs for prompts of this model where they are asked to by name
(`--cuda-graph-backend-prefill breakable`; by default they are off from 0.5.16 on, sglang
cuda_graph_hook.py). The release's own runner pads tokens to a captured count. The graph holds the
write of keys, compressor and indexer, which read metadata that the backend makes of the batch at
each replay and copies to where the graph was captured; at the break the engine's own function
attends for the live tokens alone. FlashMLA finds keys by pages, as on servers without
`SGLANG_OPT_FLASHMLA_SPARSE_PREFILL`.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import NotInRelease
from fuzzgraph.observation import Field
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS
from fuzzgraph.targets.sglang.attention_model import PrefillModel
from fuzzgraph.targets.sglang.backends.dsv4 import Dsv4Target, describe_topk, open_dsv4
from fuzzgraph.targets.sglang.compressed_model import CompressedModel
from fuzzgraph.targets.sglang.compressed_session import CompressedSession
from fuzzgraph.targets.sglang.compressor_memory import CompressorMemory
from fuzzgraph.targets.sglang.excuses.deepseek import DSV4_PREFILL_EXCUSES
from fuzzgraph.targets.sglang.excuses.prefill import PREFILL_EXCUSES
from fuzzgraph.targets.sglang.layer_streams import LAYER
from fuzzgraph.targets.sglang.release import demand_release, engine_module, release
from fuzzgraph.targets.sglang.runners.prefill import PrefillTarget
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import BREAKABLE
from fuzzgraph.targets.sglang.runners.prefill_session import PrefillSession, input_fields
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.planned_topk import chosen_topk
from fuzzgraph.targets.sglang.stubs.platform import cuda_server, in_environment
from fuzzgraph.targets.sglang.stubs.scores_memory import memory_for_scores

__all__ = ["Dsv4PrefillTarget"]

_PAGED = {"SGLANG_OPT_FLASHMLA_SPARSE_PREFILL": "0"}
_CAPTURING = "is_current_stream_capturing"
_ASKED_OF_CUDA = {**DEVICE, _CAPTURING: STREAMS[_CAPTURING]}
_GATHERS_FROM = "SGLANG_OPT_DSV4_NONPAGED_INDEXER_MIN_QUERY_TOKENS"
_THRESHOLDS = 8192, 1, 16, 64
"""Tokens from which on a prompt gathers its indexer's keys; the engine's default first."""


def _gathering(config: EngineConfig) -> dict[str, str]:
    """What a server reads of its environment about keys that are gathered.

    Raises:
        NotInRelease: the release gathers none, and the config says otherwise.
    """
    engine: Any = engine_module("sglang.srt.environ").envs  # type: ignore[attr-defined]
    if hasattr(engine, _GATHERS_FROM):
        return {_GATHERS_FROM: str(config.index_gather_threshold)}
    if config.index_gather_threshold != _THRESHOLDS[0]:
        raise NotInRelease(
            f"sglang {release()} has indexers score keys where they lie: index_gather_threshold "
            f"must be {_THRESHOLDS[0]}"
        )
    return {}


class PromptedModel(CompressedModel):
    """A layer whose prompts break a graph at attention, as the engine's model does."""

    def _attention_of(self, backend: Any) -> Any:
        if engine_module(LAYER).is_in_breakable_cuda_graph():  # type: ignore[attr-defined]
            return functools.partial(_attend_at_break, backend)
        return super()._attention_of(backend)


def _attend_at_break(
    backend: Any,
    *,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    layer: Any,
    forward_batch: Any,
    compress_ratio: int,
    attn_sink: torch.Tensor,
    save_kv_cache: bool = True,
) -> torch.Tensor:
    """The engine's own break, which finds the batch and the layer by itself; keys are stored before
    it, in the graph.

    Args:
        save_kv_cache: whether they still have to be, as where a layer has no streams.
    """
    if save_kv_cache:
        backend.store_cache(layer_id=layer.layer_id, swa_k=k, forward_batch=forward_batch)
    out = q.new_empty((*q.shape[:-1], layer.v_head_dim))
    given = q, k, out, layer.layer_id, compress_ratio, attn_sink, False
    engine_module(LAYER).bcg_deepseek_v4_attention_with_output(*given)  # type: ignore[attr-defined]
    return out


class PromptsModel(PrefillModel):
    """The same where prefill runners look for a body."""

    kind = PromptedModel


class Dsv4PrefillSession(CompressedSession, PrefillSession):
    """An opened runner on the engine's backend."""

    attention = "dsv4"
    model = PromptsModel

    @staticmethod
    def declared(config: EngineConfig) -> tuple[Field, ...]:
        return input_fields(config)

    @contextlib.contextmanager
    def engine_runs(self) -> Iterator[None]:
        found = {**chosen_topk(self._config), **_PAGED, **_gathering(self._config)}
        with in_environment(found, cuda_server(_ASKED_OF_CUDA)), memory_for_scores(self._config):
            yield

    def _open_backend(self, runner: ModelRunner) -> Any:
        describe_topk(runner.model_config.hf_text_config, self._config)
        backend = open_dsv4(runner, self._config)
        self._compressor = CompressorMemory(runner.token_to_kv_pool, self._config)
        return backend

    def _attention_metadata(self) -> dict[str, torch.Tensor]:
        return {}

    def plan(self) -> dict[str, object]:
        return {}


class Dsv4PrefillTarget(PrefillTarget):
    """Prefill graphs of the layer on the sglang release that this process holds."""

    any_page_size = False
    attends_alone = False
    not_on_device = Dsv4Target.not_on_device
    excuses = (*PREFILL_EXCUSES, *DSV4_PREFILL_EXCUSES)

    def __init__(self, name: str, kind: str = BREAKABLE.name) -> None:
        super().__init__(name, kind)
        self._layer = Dsv4Target(name)
        self.about = "breakable prefill graphs, DeepSeek V4's layers"
        self.also_stood_in_for = (
            *self.also_stood_in_for,
            *Dsv4Target.also_stood_in_for,
            "plans of compressors that are made on the host",
        )
        own = self._layer.capabilities
        self.capabilities = self.capabilities.replace(
            modes=("prefill",),
            max_tp_size=1,
            max_dp_size=1,
            idle_alone=True,
            attentions=("mla",),
            page_sizes=own.page_sizes,
            kv_compressions=own.kv_compressions,
            index_topks=own.index_topks,
            index_logits_bytes=own.index_logits_bytes,
            index_gather_thresholds=_THRESHOLDS,
            topk_kernels=own.topk_kernels,
            dtypes=own.dtypes,
            images=False,
        )

    def refused(self, config: EngineConfig) -> str | None:
        return super().refused(config) or self._layer.refused(config)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Dsv4PrefillSession:
        return Dsv4PrefillSession(config, graphs, self._kind)

    def modules(self) -> tuple[str, ...]:
        demand_release((0, 5, 13), "captures no prompts of DeepSeek V4", self.name)
        return (*self._layer.modules(), *super().modules())

    def load(self) -> None:
        self._layer.load()
        super().load()
