"""`--attention-backend dsv4`: DeepSeek V4's attention backend, whose metadata is upgraded late.

The backend prepares raw metadata before a replay and makes full metadata of it inside the graph.
Real are its constructor, both preparations, the upgrade and its Triton kernels, its forward, its
indexer's and its compressor's, and the KV pool's methods. Modelled are sparse FlashMLA, the
compressor with its planners, the indexer's queries and scores with their schedule, both selections
of keys, of which the newer follows a plan, and the write of KV. Stood in for are the weights, and
the KV pool's constructor, which allocates for a whole model. A verify has chains of drafts, which
are all that servers have (`DeepseekV4AttnBackend.__init__`: topk 0 or 1).
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import os
import re
import sys
from collections.abc import Callable, Hashable, Iterator, Mapping
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models import (
    flash_mla,
    flash_mla_sparse,
    index_query,
    kv_compressor,
    kv_compressor_extend,
    packed_mqa,
    page_store,
    paged_mqa,
    paged_topk,
)
from fuzzgraph.kernel_models.checks import Call
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.offline import fields
from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.offline.used import below_lengths
from fuzzgraph.targets.sglang.attention_model import ROW_MIXINGS
from fuzzgraph.targets.sglang.compressed_model import ENGINE_HEAD_DIM, ENGINE_TOPK, CompressedModel
from fuzzgraph.targets.sglang.compressed_session import CompressedSession
from fuzzgraph.targets.sglang.compressor_memory import CompressorMemory
from fuzzgraph.targets.sglang.decode_session import (
    DATA_RANKS,
    DecodeSession,
    refused_draft_tokens,
)
from fuzzgraph.targets.sglang.excuses.deepseek import DSV4_EXCUSES
from fuzzgraph.targets.sglang.fields import input_fields, input_names
from fuzzgraph.targets.sglang.layer_streams import LAYER
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import (
    Compiled,
    Makers,
    compile_to_models,
    source_of,
)
from fuzzgraph.targets.sglang.stubs.compressed_pool import (
    compressed_pool,
    compressor_module,
    states_by_request,
)
from fuzzgraph.targets.sglang.stubs.model_runner import ModelRunner, no_forward
from fuzzgraph.targets.sglang.stubs.planned_topk import (
    PLANNED_TOPK,
    chosen_topk,
    count_clusters,
    topk_module,
)
from fuzzgraph.targets.sglang.stubs.platform import cuda_server, in_environment
from fuzzgraph.targets.sglang.stubs.scores_memory import ask_for_memory, memory_for_scores
from fuzzgraph.targets.sglang.target import SglangTarget
from fuzzgraph.world import Batch

BACKEND = "sglang.srt.layers.attention.deepseek_v4_backend"
"""Module of the backend."""
_POOL = "sglang.srt.mem_cache.deepseek_v4_memory_pool"
_SETTINGS = {
    "SGLANG_PREP_IN_CUDA_GRAPH": "1",  # since 0.5.14 nothing else is possible
    "SGLANG_OPT_USE_JIT_INDEXER_METADATA": "0",  # the schedule is DeepGEMM's
}
"""What the engine reads from the environment."""
_NEEDED = "DSV4Metadata"
_INDEX_WIDTH = 128
_TOPK = 64
"""Keys that an indexer selects of a case's 128; a table of them has columns in multiples of it."""
_STORE = "deepseek_v4/fused_norm_rope_v2.cuh"
_FP8 = "V4"
"""Layout of its pages, by the source."""
_PLANNERS = "deepseek_v4/c_plan.cuh"
_MOST_DRAFTS = re.compile(r"kMaxMTPDraftTokens = (\d+);")
_DRAFTS: Mapping[str, Any] = MappingProxyType({"max_draft_tokens": 8, "max_spec_steps": 3})
"""Of `Capabilities`: of a verify."""
TABLE = (
    "sglang deepseek_v4_backend.py make_core_attn_metadata: pages of each row below its own "
    "length; a padded row lies in the pool's padding row"
)


class Dsv4Target(SglangTarget):
    """The DSV4 backend of the sglang release that this process holds.

    Args:
        upgrades: whether raw metadata is upgraded; False makes the mutant of PR 26742.
    """

    excuses = DSV4_EXCUSES
    not_on_device = "its pool keeps sums of groups in the model's dtype, and kernels take float32"
    also_stood_in_for = (
        "sparse FlashMLA, the compressor, the indexer's queries and scores, both selections of keys"
        " with their planner, and the write of KV, by models",
        "the KV pool's constructor",
        "FP8 of the KV",
    )
    _shared = Capabilities(
        modes=("decode", "idle"),
        **DATA_RANKS,
        page_sizes=(256,),
        attentions=("mla",),
        kv_compressions=("window", "c4", "c128"),
        index_topks=(0, _TOPK),
        topk_kernels=("planned", "unplanned"),
        index_logits_bytes=(0, 1, 2048, 8192),
        max_batch=4,
        max_context_len=8192,
        capture_beyond_pool=False,
        row_mixings=ROW_MIXINGS,
    )

    layers = "DeepSeek V4's layers"

    def __init__(self, name: str, mode: Mode = "decode", *, upgrades: bool = True) -> None:
        self.name = name
        self.about = f"{self.layers}, metadata upgraded late, {mode} graphs"
        self._upgrades = upgrades
        self.outputs_judged: Mapping[Mode, str] = {mode: ""} if upgrades else {}
        drafts = _DRAFTS if mode == "target_verify" else {}
        self.capabilities = self._shared.replace(modes=(mode, "idle"), **drafts)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> Dsv4Session:
        return Dsv4Session(config, graphs, upgrades=self._upgrades)

    def modules(self) -> tuple[str, ...]:
        return BACKEND, _POOL, _INDEXER, LAYER

    def refused(self, config: EngineConfig) -> str | None:
        if config.index_topk not in self.capabilities.index_topks:
            return f"index_topk={config.index_topk}: tables of selected keys have {_TOPK} columns"
        return refused_width(config) or refused_draft_tokens(config)

    def load(self) -> None:
        set_environment()
        super().load()


def set_environment() -> None:
    """What the engine reads from it when it is imported, for the life of the worker."""
    engine_module("sglang.srt.environ")  # looks at what the shell has set
    os.environ.update(_SETTINGS)


def refused_width(config: EngineConfig) -> str | None:
    """Why no kernel takes rows as wide as a config's; None if they do."""
    if config.head_dim % 2:
        return f"head_dim={config.head_dim} cannot be rotated in pairs"
    if config.head_dim == _INDEX_WIDTH:
        return f"head_dim={config.head_dim}: kernels take rows of that for the indexer's"
    return None


def without_upgrade() -> Dsv4Target:
    """The mutant of PR 26742: the upgrade is lost, as its review warned."""
    return Dsv4Target("sglang-dsv4", upgrades=False)


_INDEXER = "sglang.srt.layers.attention.dsv4.indexer"
_FLASH_MLA = (
    "sglang.kernels.ops.attention.flash_mla_interface",
    "sgl_kernel.flash_mla",
    "flash_mla",
)
"""Modules that the releases take FlashMLA from, the newest first."""
_SPARSE = flash_mla_sparse.flash_mla_sparse_with_kvcache


class Topk(int):
    """How many keys an indexer selects; it passes for the number that the engine asserts.

    Kernels are compiled for 512 keys or 1024, of which a case has too few to leave any out.
    """

    def __eq__(self, other: object) -> bool:
        return other == ENGINE_TOPK or int(self) == other

    __hash__ = int.__hash__


def _empty_plan(*_: Any, **__: Any) -> tuple[Any, None]:
    # FlashMLA 2026, flash_mla_interface.py: the first decode fills it
    return flash_mla.FlashMLASchedMeta(), None


def _put_models(device: str) -> None:
    """The models in the places of the compiled kernels that this release calls."""
    if device != "cpu":
        return
    wrapper, *packages = _FLASH_MLA
    package = Stub(get_mla_metadata=_empty_plan, flash_mla_with_kvcache=_SPARSE)
    if has_module(wrapper):
        engine_module(wrapper).flash_mla = package  # type: ignore[attr-defined]
        engine_module(wrapper).FlashMLASchedMeta = flash_mla.FlashMLASchedMeta  # type: ignore[attr-defined]
    for name in packages:
        for function in ("get_mla_metadata", "flash_mla_with_kvcache"):
            put_model(engine_module(name), function, getattr(package, function))
    put_model(engine_module(_POOL), "fused_store_cache", page_store.store_rows)
    indexer: Any = engine_module(_INDEXER)
    for scores in (paged_mqa, packed_mqa):
        for name in scores.__all__:
            put_model(engine_module("deep_gemm"), name, getattr(scores, name))
    for name in ("topk_transform_paged", "topk_transform_512"):
        if hasattr(indexer, name):
            put_model(indexer, name, paged_topk.topk_transform_paged)
    rotates = inspect.unwrap(indexer.fused_q_indexer_rope_hadamard_quant)
    for module in {compressor_module(), sys.modules[rotates.__module__], topk_module()}:
        compile_to_models(module, _COMPILED)
    count_clusters()
    plan: Any = compressor_module().CompressorPrefillPlan
    plan.generate = staticmethod(tensors_claim_cuda(plan.generate, device=True))


def _planner(compiled: Compiled) -> Any:
    return functools.partial(
        kv_compressor.plan_compress_decode, rings_of_requests=states_by_request(128)
    )


def _extend_planner(compiled: Compiled) -> Any:
    kept = _MOST_DRAFTS.search(source_of(_PLANNERS))
    planned: Callable[..., Any] = functools.partial(
        kv_compressor_extend.plan_compress_extend,
        rings_of_requests=states_by_request(128),
        most_drafts=int(kept[1]) if kept else None,
    )
    if "use_req_ring" in compiled.parameters:
        return planned
    return lambda *args: planned(*args[:-1], False, args[-1])


def _compression(ratio: int, model: Any) -> Any:
    def made(compiled: Compiled) -> Any:
        # Up to 0.5.13 states have the dtype of what comes in.
        stored = compiled.dtype("BufferFloat", "InFloat")
        return functools.partial(
            model,
            ratio=ratio,
            width=compiled.number("kHeadDim"),
            dtypes=(stored, compiled.dtype("InputFloat", "InFloat"), compiled.dtype("OutFloat")),
        )

    return made


def _compressed_store(compiled: Compiled) -> Any:
    said = compiled.template
    fp8_pages = said.get("kBf16Store", "false") == "false" and said.get("kLayout", _FP8) == _FP8
    if compiled.number("kHeadDim") == _INDEX_WIDTH and not fp8_pages:
        raise KernelRefused("FusedNormRopeKernel of an indexer has pages of FP8 alone (its source)")
    shuffled = int(said.get("kPreshuffleSize", "0"))
    Call("FusedNormRopeKernel", _STORE).leaves_out(
        {"kPreshuffleSize": shuffled}, {"kPreshuffleSize": 0}
    )
    return functools.partial(
        page_store.store_compressed,
        rotated=compiled.number("kRopeDim"),
        fp8_pages=fp8_pages,
        page_size=compiled.number("kPageSize"),
        width=compiled.number("kHeadDim"),
        dtype=compiled.dtype("DType"),
        slot_dtype=_slot_dtype(),
    )


def _query(compiled: Compiled) -> Any:
    return functools.partial(index_query.quantise_index_query, dtype=compiled.dtype("DType"))


_COMPILED: Makers = {
    "plan_compress_decode": _planner,
    "plan_compress_prefill": _extend_planner,
    **{
        f"FlashCompress{ratio}Kernel::{method}": _compression(ratio, model)
        for ratio in (4, 128)
        for method, model in (
            ("run_decode", kv_compressor.compress_decode),
            ("run_prefill", kv_compressor_extend.compress_extend),
        )
    },
    "FusedNormRopeKernel::forward": _compressed_store,
    "FusedQIndexerRopeHadamardQuantKernel::forward": _query,
    **PLANNED_TOPK,
}
"""What compressor and indexer compile."""


def _slot_dtype() -> torch.dtype:
    """What slots the release's own kernel of compressed keys is compiled for, by its source."""
    int32 = "const int32_t* __restrict__ out_loc;" in source_of(_STORE)
    return torch.int32 if int32 else torch.int64


class LookingModel(CompressedModel):
    """Shows the metadata of each forward, which up to 0.5.12 attention itself upgrades."""

    def __init__(self, config: EngineConfig, device: torch.device, look: Any) -> None:
        super().__init__(config, device)
        self._look = look

    def attend(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        out = super().attend(input_ids, positions, forward_batch)
        self._look(input_ids, positions, forward_batch)
        return out


def describe_topk(model: Any, config: EngineConfig) -> None:
    """How many keys an indexer selects, where the model says it."""
    if config.index_topk:
        model.index_topk = Topk(config.index_topk)


def open_dsv4(runner: ModelRunner, config: EngineConfig) -> Any:
    """The release's own backend on a runner, as `prepare_dsv4` has it."""
    prepare_dsv4(runner, config)
    return engine_module(BACKEND).DeepseekV4AttnBackend(runner)


def prepare_dsv4(runner: ModelRunner, config: EngineConfig) -> None:
    """Replace the KV pool of a runner by the stand-in, and compiled code by models."""
    module: Any = engine_module(BACKEND)
    _put_models(runner.device)
    ask_for_memory()
    runner.token_to_kv_pool = compressed_pool(config, runner.device)
    runner.model_config.head_dim = ENGINE_HEAD_DIM
    if runner.device == "cpu":
        # As on the GPU that `cuda_on_cpu` tells of.
        module.is_cuda = engine_module(_INDEXER).is_cuda = lambda: True  # type: ignore[attr-defined]
        if hasattr(module, "_is_cuda"):
            module._is_cuda = True


class Dsv4Session(CompressedSession, DecodeSession):
    """One backend and one decode runner with its captured graphs."""

    model_class: type[LookingModel] = LookingModel

    def __init__(self, config: EngineConfig, graphs: GraphEngine, *, upgrades: bool) -> None:
        self._upgrades = upgrades
        self._read: dict[Hashable, Any] = {}
        self.inputs = input_names(config)
        self.fields = (
            *input_fields(config, 1),
            fields.page_table(source=TABLE),
            fields.value("seq_lens_casual", repeats="token_lens", source=TABLE),
        )
        model: Any = Stub(forward=self._look, shared_experts_config=None)
        if upgrades:
            model = self.model_class(config, graphs.device, self._look)
        super().__init__(
            config, graphs, backend="dsv4", model=model, arguments=self.arguments_of(config)
        )
        self._compressor = CompressorMemory(self._model_runner.token_to_kv_pool, config)

    def arguments_of(self, config: EngineConfig) -> Mapping[str, Any]:
        """What the server is started with beside what a config says."""
        return {}

    @contextlib.contextmanager
    def engine_runs(self, batch: Batch | None = None) -> Iterator[None]:
        server = in_environment(self.environment(), self.server())
        with server, memory_for_scores(self._config):
            yield

    def environment(self) -> dict[str, str]:
        """What the engine finds in its environment while it runs."""
        return chosen_topk(self._config)

    def server(self) -> contextlib.AbstractContextManager[None]:
        """What it finds around it."""
        return cuda_server()

    def _look(self, input_ids: Any, positions: Any, forward_batch: Any, **_: Any) -> Any:
        """Takes down the metadata that the forward finds."""
        self._read["last"] = self.backend.forward_metadata
        return no_forward()

    def remember(self, key: Hashable) -> None:
        self._read[key] = self._read["last"]
        super().remember(key)

    def _open_backend(self, runner: ModelRunner) -> Any:
        self._describe(runner.model_config.hf_text_config)
        backend = open_dsv4(runner, self._config)
        if not self._upgrades:
            backend.init_forward_metadata_in_graph = lambda forward_batch: None
        return backend

    def _describe(self, model: Any) -> None:
        """What the model's config says beside the shapes."""
        describe_topk(model, self._config)

    def _prepare_eagerly(self) -> None:
        super()._prepare_eagerly()
        if self._attention is None and self._last_batch.batch_size:
            self._look(None, None, self._last_batch)

    def _seen(self) -> Any:
        """The metadata that the forward of this step had before it."""
        return self._read.get("last" if self.ran_eagerly else self.graph_key())

    def _used(self, lens: torch.Tensor) -> dict[str, torch.Tensor]:
        core = getattr(self._seen(), "core_attn_metadata", None)
        if core is None:  # raw metadata, which the types tell of
            return {}
        tokens = self.runner.width
        if self._verifies:
            lens = lens + tokens  # the scheduler's are without the drafts
        table = below_lengths(core.page_table, lens, self._config.page_size, tokens)
        casual = core.seq_lens_casual[: len(lens) * tokens].clone()
        return {"page_table": table, "seq_lens_casual": casual}

    def types(self) -> dict[str, str]:
        if self._seen() is None:
            return {}
        kind = type(self._seen()).__name__
        return {"forward_metadata": kind, "forward_metadata.needed": _NEEDED}
