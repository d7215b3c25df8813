"""`--attention-backend nsa`: sparse attention that selects among its keys.

Real: `NativeSparseAttnBackend`, called `DeepseekSparseAttnBackend` in later releases, with its
preparation as on CUDA and its Triton kernels, its forwards over FlashAttention 3 and sparse
FlashMLA, the writing of latent KV, and the indexer's keys and selection. Modelled: DeepGEMM's
scores and their schedule, the store of the indexer's keys, both selections of the best keys, of
which the newer follows a plan, and the attention kernels. Stood in for are the indexer's
projections (see `selecting_model`). The device has compute capability 9 or 10. Left out are
`flashmla_kv`, which quantises rows of 512 columns, and TensorRT-LLM's sparse attention.
"""

from __future__ import annotations

import functools
import inspect
import re
import sys
from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import INDEXED_CONTEXT
from fuzzgraph.kernel_models import (
    flash_attention,
    flash_mla_sparse,
    page_store,
    paged_mqa,
    sparse_indexer,
)
from fuzzgraph.targets.offline.cuda_on_cpu import tensors_claim_cuda
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
)
from fuzzgraph.targets.sglang.backends.trtllm_mla import TRTLLM_MLA
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.selecting_draft_model import SelectingDraftModel
from fuzzgraph.targets.sglang.selecting_model import SelectingModel, indexer_module
from fuzzgraph.targets.sglang.stubs.compiled_modules import Compiled, Makers, compile_to_models
from fuzzgraph.targets.sglang.stubs.metadata_copy import compile_metadata_copy
from fuzzgraph.targets.sglang.stubs.planned_topk import (
    chosen_topk,
    compile_planned_topk,
)

_KERNELS = "sgl_kernel"
_WRAPPER = "sglang.kernels.ops.attention.flash_mla_interface"
"""The engine's own functions around FlashMLA's package, from 0.5.23 on."""
_PLANNER = "deep_gemm"
_FUSED = (
    "sglang.kernels.ops.attention.dsa.metadata",
    "sglang.kernels.ops.attention.dsa_metadata",
    f"{ATTENTION}.dsa.dsa_metadata_manager",
    f"{ATTENTION}.triton_ops.dsa_metadata",
)
"""Where releases have the kernels that make all metadata at once, whose callers assert a GPU."""
_FUSED_NAME = re.compile(r"fused_dsa_\w+_metadata")
_STORE = "fused_store_index_k_cache"
_SPARSE_HEADS = {9: 64, 10: 128}
"""Compute capability -> query heads of sparse FlashMLA there, to which the backend pads."""


def _refuses(config: EngineConfig) -> str | None:
    heads = _SPARSE_HEADS[config.compute_capability]
    if config.sparse_kernel != "fa3" and heads % config.num_q_heads:
        return f"{config.num_q_heads} query heads cannot be padded to {heads}"
    return None


def _key_store(compiled: Compiled) -> Any:
    return functools.partial(
        page_store.store_index_keys,
        page_size=compiled.number("kPageSize"),
        dtype=compiled.dtype("KeyT"),
        slot_dtype=compiled.dtype("IndicesT"),
    )


_COMPILED: Makers = {"FusedStoreCacheIndexerKernel::run": _key_store}
"""What the indexer compiles to write its keys."""


def _as_on_cuda(module: Any) -> None:
    """Have the backend prepare as on the GPU that `cuda_on_cpu` tells of.

    Only there it plans the indexer's scores, and makes its metadata by one kernel.
    """
    module.is_cuda = lambda: True
    indexer = indexer_module()
    indexer._is_cuda = True
    for each in (module, indexer):
        each.deep_gemm = engine_module(_PLANNER)  # imported there on a GPU alone
    if hasattr(indexer, _STORE):
        setattr(indexer, _STORE, tensors_claim_cuda(getattr(indexer, _STORE)))
        compile_to_models(
            sys.modules[inspect.unwrap(getattr(indexer, _STORE)).__module__], _COMPILED
        )
    compile_planned_topk()
    compile_metadata_copy()
    for name in filter(has_module, _FUSED):
        holder: Any = engine_module(name)
        for function in filter(_FUSED_NAME.fullmatch, dir(holder)):
            setattr(holder, function, tensors_claim_cuda(getattr(holder, function)))


def _sparse_model(runner: Any) -> None:
    """A model whose attention selects among its keys, whose KV is not quantised."""
    described = runner.model_config.hf_config
    described.architectures = ["DeepseekV32ForCausalLM"]
    config = runner.configuration.config
    described.index_topk = config.index_topk or config.max_context_len  # then no key is left out
    pool = runner.token_to_kv_pool
    pool.nsa_kv_cache_store_fp8 = pool.dsa_kv_cache_store_fp8 = False
    if runner.device == "cpu":
        # The older of its two modules stays behind, and may not be imported.
        module: Any = engine_module(NSA.place()[0])
        module.flash_attn_with_kvcache = flash_attention.flash_attn_with_kvcache
        _as_on_cuda(module)


NSA = AttentionBackend(
    name="nsa",
    places=(
        (f"{ATTENTION}.dsa_backend", "DeepseekSparseAttnBackend"),
        (f"{ATTENTION}.nsa_backend", "NativeSparseAttnBackend"),
    ),
    attentions=("mla",),
    page_sizes=(64,),  # the backend asserts it
    fields=("cache_seqlens", "cu_seqlens_k", "page_table", "token_indices"),
    max_context_len=INDEXED_CONTEXT,
    stood_in_for=(
        "the indexer's scores and store of keys, both selections of keys and their planner,"
        " FlashAttention 3 and sparse FlashMLA, by models",
        "the indexer's projections",
    ),
    read=attributes(
        cache_seqlens="cache_seqlens_int32",
        cu_seqlens_k="cu_seqlens_k",
        page_table="real_page_table",
        token_table="page_table_1",
    ),
    adapt=_sparse_model,
    asserts_gpu=("seqlens_expand_triton",),
    stubs=TRTLLM_MLA.kernels,  # for their counters it makes room on a newer device from the start
    kernels=(
        (_PLANNER, "get_num_sms", paged_mqa.get_num_sms),
        (_PLANNER, "get_paged_mqa_logits_metadata", paged_mqa.get_paged_mqa_logits_metadata),
        (_PLANNER, "fp8_paged_mqa_logits", paged_mqa.fp8_paged_mqa_logits),
        (_KERNELS, "fast_topk_v2", sparse_indexer.fast_topk_v2),
        (_KERNELS, "fast_topk_transform_fused", sparse_indexer.fast_topk_transform_fused),
        (
            _KERNELS,
            "fast_topk_transform_ragged_fused",
            sparse_indexer.fast_topk_transform_ragged_fused,
        ),
        (_WRAPPER, "flash_mla", Stub(flash_mla_sparse_fwd=flash_mla_sparse.flash_mla_sparse_fwd)),
        (f"{_KERNELS}.flash_mla", "flash_mla_sparse_fwd", flash_mla_sparse.flash_mla_sparse_fwd),
    ),
    refuses=_refuses,
    model=SelectingModel,
    draft_model=SelectingDraftModel,
    more=(
        ("index_topks", (0, 1, 3, 16, 64)),
        ("sparse_kernels", ("fa3", "flashmla_sparse")),
        ("compute_capabilities", (9, 10)),
        ("topk_kernels", ("planned", "unplanned")),
    ),
    environment=chosen_topk,
    # Both take KV of 16 bits on a Hopper, where servers have the first unless they ask.
    chosen=lambda config: dict.fromkeys(
        ("nsa_decode_backend", "dsa_decode_backend"), config.sparse_kernel
    ),
)

target = NSA.target
