"""DeepSeek V4.1 on `--attention-backend dsv4`: layers with a key of each token, or of each two.

V4.1's model is V4's class with compression ratios of 1 and 2 (sglang configs/deepseek_v41.py,
models/deepseek_v4.py `MQALayer`). Its layers have metadata of their own beside V4's: slots and
lengths of both ratios, a table of smaller pages for each one's indexer, and in a verify a schedule
of all drafts of a request at once. It is driven as on a GPU of compute capability 10, where
what compresses and packs is compiled, and DeepGEMM scores. Real are what `dsv4` has, and besides
the metadata of both ratios with its Triton kernels, the backend's calls of compressor and indexer,
the indexer's selection among all keys, and tables of its pages. Not driven are layers that narrow
the keys of others down to blocks (`candidate_source_layer_id`), verifies of several data-parallel
ranks, and logits in bfloat16, which make different keys equally good.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fuzzgraph.capabilities import unsupported_setting
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.compressor_layer import key_rows
from fuzzgraph.content import content_for
from fuzzgraph.kernel_models import fp4_indexer, low_ratio_compressor
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.dsv4 import Dsv4Session, Dsv4Target, LookingModel, Topk
from fuzzgraph.targets.sglang.excuses import DSV41_EXCUSES
from fuzzgraph.targets.sglang.low_ratio_model import ENGINE_MOST_TOPK, LowRatioModel
from fuzzgraph.targets.sglang.release import demand_release, engine_module, is_before
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.planned_topk import chosen_topk
from fuzzgraph.targets.sglang.stubs.platform import cuda_server, in_environment
from fuzzgraph.world import VOCAB, Batch

_SELECTION = "sglang.srt.layers.attention.dsv4.v41_indexer"
_COMPILING = (
    "sglang.kernels.ops.attention.dsv4.low_ratio_compress",
    "sglang.kernels.ops.attention.dsv4.fp4_indexer_rope",
)
"""Modules that compile compressors, and what packs an indexer's keys and queries."""
_FLOAT_LOGITS: Mapping[str, str] = {"SGLANG_OPT_DSV41_BF16_INDEX_LOGITS": "0"}
_DSPARK: Mapping[str, Any] = {
    "speculative_algorithm": "DSPARK",
    "speculative_eagle_topk": None,
}
_DRAFTED = "sglang.srt.speculative.dflash_info"
"""What DSpark's verifies hand over is defined there, as DFLASH's (sglang dspark_verify.py)."""
_LACK = "has no layers of DeepSeek V4.1"


class Dsv41Target(Dsv4Target):
    """Layers of DeepSeek V4.1 in the sglang release that this process holds."""

    layers = "DeepSeek V4.1"
    excuses = DSV41_EXCUSES
    also_stood_in_for = (
        "sparse FlashMLA, the compressors, the indexer's keys, queries and scores, both selections"
        " of keys with their planner, and the write of KV, by models",
        "the KV pool's constructor",
        "FP8 and FP4 of the KV",
    )
    _shared = Dsv4Target._shared.replace(
        kv_compressions=("c1", "c2"),
        # No server decodes a first token, and a group of two has no key before its second.
        min_seq_len=2,
        max_context_len=ENGINE_MOST_TOPK,
    )

    def __init__(self, name: str, mode: Mode = "decode") -> None:
        super().__init__(name, mode)
        if mode == "target_verify":  # idle ranks hand over a batch that DSpark makes for them
            self.capabilities = self.capabilities.replace(max_dp_size=1)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Dsv41Session:
        return Dsv41Session(config, graphs, upgrades=True)

    def modules(self) -> tuple[str, ...]:
        return *super().modules(), _SELECTION, *_COMPILING

    def refused(self, config: EngineConfig) -> str | None:
        # First what no content is made for.
        said = super().refused(config) or unsupported_setting(self.capabilities, config)
        if said:
            return said
        rows = key_rows(content_for(config), np.arange(VOCAB))
        if len(rows.unique(dim=0)) < VOCAB:
            return f"head_dim={config.head_dim}: two tokens have one key, and an indexer two"
        return None

    def load(self) -> None:
        demand_release((0, 5, 21), _LACK, self.name)
        super().load()


def _tokens(compiled: Compiled) -> Any:
    return _sized(low_ratio_compressor.compress_tokens, compiled)


def _pairs(compiled: Compiled) -> Any:
    return _sized(low_ratio_compressor.compress_pairs, compiled)


def _sized(model: Any, compiled: Compiled) -> Any:
    width, page_size = compiled.number("kHeadDim"), compiled.number("kPageSize")
    return lambda *args: model(*args, width=width, page_size=page_size)


def _keys(compiled: Compiled) -> Any:
    page_size, ratio = compiled.number("kPageSize"), compiled.number("kRatio")
    return lambda *args: fp4_indexer.pack_index_keys(*args, page_size=page_size, ratio=ratio)


def _queries(compiled: Compiled) -> Any:
    return fp4_indexer.pack_index_queries


_COMPILED: Makers = {
    "FlashCompress1Kernel::run_decode_fusion": _tokens,
    "FlashCompress2Kernel::run_decode_fusion": _pairs,
    "IndexKKernel::run_index_k": _keys,
    "IndexQKernel::run_index_q_weights": _queries,
}


class _LookingModel(LookingModel, LowRatioModel):
    """Shows the metadata of each forward of such a layer."""


class Dsv41Session(Dsv4Session):
    """One backend and one decode runner with its captured graphs."""

    model_class = _LookingModel

    def arguments_of(self, config: EngineConfig) -> Mapping[str, Any]:
        # sglang arg_groups/deepseek_v4_hook.py, validate_deepseek_v41_features: no other drafts
        return _DSPARK if config.modes == ("target_verify",) else {}

    def engine_runs(self, batch: Batch | None = None) -> contextlib.AbstractContextManager[None]:
        settings = {**chosen_topk(self._config), **_FLOAT_LOGITS}
        return in_environment(settings, _server())

    def _translate(self, batch: Batch) -> Any:
        found = super()._translate(batch)
        if self._verifies:
            drafted = engine_module(_DRAFTED)
            found.spec_info = drafted.DFlashVerifyInput(
                draft_token=found.spec_info.draft_token,
                positions=found.spec_info.positions,
                draft_token_num=self._config.draft_tokens,
            )
        return found

    def _describe(self, model: Any) -> None:
        model.model_type = "deepseek_v41"
        model.index_topk = Topk(self._config.index_topk or ENGINE_MOST_TOPK)

    def _open_backend(self, runner: ModelRunner) -> Any:
        for name in _COMPILING:
            compile_to_models(engine_module(name), _COMPILED)
        backend = super()._open_backend(runner)
        if runner.device == "cpu":
            make = backend.make_core_attn_metadata
            backend.make_core_attn_metadata = tensors_claim_cuda(make)
        return backend


@contextlib.contextmanager
def _server() -> Iterator[None]:
    """Around the engine's code: a server whose GPU has compute capability 10."""
    selection = engine_module(_SELECTION)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_server())
        stack.enter_context(replaced_names([selection], {"is_sm100_or_newer": lambda: True}))
        if is_before((0, 5, 22)):  # asks in every step where queries lie, and for which CUDA
            holder = engine_module(f"{_SELECTION}.full_topk")
            packs = tensors_claim_cuda(holder.get_deep_gemm_decode_data)
            stack.enter_context(replaced_names([holder], {"get_deep_gemm_decode_data": packs}))
            stack.enter_context(
                replaced_names([torch.version], {"cuda": torch.version.cuda or "12"})
            )
        yield
