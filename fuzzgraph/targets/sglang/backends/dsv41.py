"""DeepSeek V4.1 on `--attention-backend dsv4`: layers with a key of each token, or of each two.

V4.1's model is V4's class with compression ratios of 1 and 2 (sglang configs/deepseek_v41.py,
models/deepseek_v4.py `MQALayer`). Its layers have metadata of their own beside V4's: slots and
lengths of both ratios, a table of smaller pages for each one's indexer, and in a verify a schedule
of all drafts of a request at once. It is driven as on a GPU of compute capability 10, where
what compresses and packs is compiled, and DeepGEMM scores. Real are what `dsv4` has, and besides
the metadata of both ratios with its Triton kernels, the backend's calls of compressor and indexer,
the indexer's selection among all keys and among candidates, tables of its pages, and the choice
among several graphs of a size. Not driven are metadata of a verify that is made before its graph,
windows by request, and logits in bfloat16 of layers that select among all keys, which make
different ones equally good.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import numpy as np
import torch

from fuzzgraph.capabilities import unsupported_setting
from fuzzgraph.case import EngineConfig
from fuzzgraph.compressor_layer import CANDIDATE_BLOCK, key_rows
from fuzzgraph.content import content_for
from fuzzgraph.fp4_index import CANDIDATE_POSITIONS
from fuzzgraph.kernel_models import candidate_blocks, fp4_indexer, low_ratio_compressor
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline.cuda_on_cpu import DEVICE, STREAMS, tensors_claim_cuda
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.sglang.backends.dsv4 import Dsv4Session, Dsv4Target, LookingModel, Topk
from fuzzgraph.targets.sglang.excuses.deepseek import DSV41_EXCUSES
from fuzzgraph.targets.sglang.low_ratio_model import ENGINE_MOST_TOPK, LowRatioModel
from fuzzgraph.targets.sglang.release import demand_release, engine_module, is_before
from fuzzgraph.targets.sglang.runners.base import RunnerDriver
from fuzzgraph.targets.sglang.runners.decode_cuda_graph_runner import RUNNER_MODULE
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner
from fuzzgraph.targets.sglang.stubs.planned_topk import PLANNED_TOPK, topk_module
from fuzzgraph.targets.sglang.stubs.platform import cuda_server
from fuzzgraph.world import VOCAB, Batch

_SELECTION = "sglang.srt.layers.attention.dsv4.v41_indexer"
_COMPILING = (
    "sglang.kernels.ops.attention.dsv4.low_ratio_compress",
    "sglang.kernels.ops.attention.dsv4.fp4_indexer_rope",
    "sglang.kernels.ops.attention.dsv4.candidate_blocks",
    "sglang.kernels.ops.attention.dsv4.candidate_table",
)
"""Modules that compile compressors, what packs an indexer's keys and queries, and what candidates
are made of."""
_FLOAT_LOGITS: Mapping[str, str] = {"SGLANG_OPT_DSV41_BF16_INDEX_LOGITS": "0"}
_DSPARK: Mapping[str, Any] = {
    "speculative_algorithm": "DSPARK",
    # sglang arg_groups/speculative_hook.py, _handle_dspark: both are 1, whatever is asked for
    "speculative_num_steps": 1,
    "speculative_eagle_topk": 1,
}
_DRAFTED = "sglang.srt.speculative.dflash_info"
"""What DSpark's verifies hand over is defined there, as DFLASH's (sglang dspark_verify.py)."""
_DEEP_GEMM = "sglang.srt.layers.deep_gemm_wrapper.configurer"
_SCORES_BLOCKS = "DEEPGEMM_PAGED_SPARSE_MQA_LOGITS"
_VARIANTS = "create_dsv41_candidate_graph_variants"
_SOURCES: Mapping[str, int] = {"own": 1, "source": 0, "candidates": 0, "shared": 2}
"""Number of the layer whose indexer leaves candidates, by what the layer under test is."""
_LACK = "has no layers of DeepSeek V4.1"


class Dsv41Target(Dsv4Target):
    """Layers of DeepSeek V4.1 in the sglang release that this process holds."""

    layers = "DeepSeek V4.1"
    excuses = DSV41_EXCUSES
    also_stood_in_for = (
        "sparse FlashMLA, the compressors, the indexer's keys, queries and scores, all selections"
        " of keys and blocks with their planner, and the write of KV, by models",
        "the KV pool's constructor",
        "FP8 and FP4 of the KV",
    )
    _shared = Dsv4Target._shared.replace(
        kv_compressions=("c1", "c2"),
        # No server decodes a first token, and a group of two has no key before its second.
        min_seq_len=2,
        max_context_len=ENGINE_MOST_TOPK,
        candidate_blocks=(0, 8, 16, 32),
        index_layers=("own", "source", "candidates", "shared"),
    )

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Dsv41Session:
        return Dsv41Session(config, graphs, upgrades=True)

    def modules(self) -> tuple[str, ...]:
        return *super().modules(), _SELECTION, *_COMPILING

    def refused(self, config: EngineConfig) -> str | None:
        # First what no content is made for.
        said = super().refused(config) or unsupported_setting(self.capabilities, config)
        if said:
            return said
        selects = config.index_layer in ("source", "candidates")
        if selects and config.topk_kernel == "unplanned":
            # sglang dsv4/v41_indexer/sparse_table.py publish_decode: it calls the newer one alone
            return f"index_layer={config.index_layer!r} selects by a plan, whatever a server says"
        if config.index_layer == "candidates" and config.max_context_len > CANDIDATE_POSITIONS:
            return f"max_context_len={config.max_context_len}: scores in bfloat16 tell fewer apart"
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
    names = {"width": "kHeadDim", "page_size": "kPageSize", "rotated": "kRopeDim"}
    built = {name: compiled.number(parameter) for name, parameter in names.items()}
    return functools.partial(model, **built)


def _sizes(compiled: Compiled) -> tuple[int, int]:
    return compiled.number("kHeadDim"), compiled.number("kRopeDim")


def _keys(compiled: Compiled) -> Any:
    return functools.partial(
        fp4_indexer.pack_index_keys,
        page_size=compiled.number("kPageSize"),
        ratio=compiled.number("kRatio"),
        sizes=_sizes(compiled),
    )


def _queries(compiled: Compiled) -> Any:
    return functools.partial(fp4_indexer.pack_index_queries, sizes=_sizes(compiled))


def _maxima(compiled: Compiled) -> Any:
    # Up to 0.5.22 both are float32, and the source names no type.
    typed = "InT" in compiled.template
    dtypes = [compiled.dtype(name) if typed else torch.float32 for name in ("InT", "OutT")]
    return lambda *args: candidate_blocks.maxima_of_blocks(*args, dtypes=dtypes)


def _sorter(compiled: Compiled) -> Any:
    return candidate_blocks.sort_blocks


def _selection(compiled: Compiled) -> Any:
    return candidate_blocks.select_among_blocks


_COMPILED: Makers = {
    "BlockAmaxKernel::amax8_varlen": _maxima,
    "CandidateBlockTableKernel::transform": _sorter,
    "TopKBF16Kernel::transform": _selection,
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

    def environment(self) -> dict[str, str]:
        return {**super().environment(), **_FLOAT_LOGITS}

    def server(self) -> contextlib.AbstractContextManager[None]:
        return _server()

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
        if self._config.candidate_blocks:
            model.candidate_topk_blocks = self._config.candidate_blocks
            model.candidate_block_size = CANDIDATE_BLOCK
            model.candidate_source_layer_id = _SOURCES[self._config.index_layer]
            model.compress_ratios = [1, 2]

    def _open_runner(self, graphs: GraphEngine) -> RunnerDriver:
        runner = engine_module(RUNNER_MODULE)
        with replaced_names([runner], {_VARIANTS: _on_blackwell(getattr(runner, _VARIANTS))}):
            return super()._open_runner(graphs)

    def _open_backend(self, runner: ModelRunner) -> Any:
        for name in _COMPILING:
            compile_to_models(engine_module(name), _COMPILED)
        backend = super()._open_backend(runner)
        if runner.device == "cpu":
            compile_to_models(topk_module(), {**PLANNED_TOPK, **_COMPILED})
            for name in candidate_blocks.SCORING:
                put_model(engine_module("deep_gemm"), name, getattr(candidate_blocks, name))
        if runner.device == "cpu":
            make = backend.make_core_attn_metadata
            backend.make_core_attn_metadata = tensors_claim_cuda(make)
        return backend


def _on_blackwell(variants: Callable[..., Any]) -> Callable[..., Any]:
    """The engine's choice of graphs of a size, as on a GPU of compute capability 10."""

    def chosen(runner: ModelRunner, *args: Any) -> Any:
        with replaced_names([torch.cuda], {"get_device_capability": lambda *_: (10, 0)}):
            return variants(runner.beside(device="cuda"), *args)

    return chosen


@contextlib.contextmanager
def _server() -> Iterator[None]:
    """Around the engine's code: a server whose GPU has compute capability 10."""
    selection = engine_module(_SELECTION)
    with contextlib.ExitStack() as stack:
        stack.enter_context(cuda_server({**DEVICE, **STREAMS}))
        if not torch.cuda.is_available():  # memory of the CPU is given back when nobody has it
            forgets = {"record_stream": lambda *_: None}
            stack.enter_context(replaced_names([torch.Tensor], forgets))
        stack.enter_context(replaced_names([selection], {"is_sm100_or_newer": lambda: True}))
        # Which functions an installed DeepGEMM has, is asked when the engine is imported.
        stack.enter_context(replaced_names([engine_module(_DEEP_GEMM)], {_SCORES_BLOCKS: True}))
        if is_before((0, 5, 22)):  # asks in every step where queries lie, and for which CUDA
            for name in ("full_topk", "sparse_table"):
                holder = engine_module(f"{_SELECTION}.{name}")
                packs = tensors_claim_cuda(holder.get_deep_gemm_decode_data)
                stack.enter_context(replaced_names([holder], {"get_deep_gemm_decode_data": packs}))
            stack.enter_context(
                replaced_names([torch.version], {"cuda": torch.version.cuda or "12"})
            )
        yield
