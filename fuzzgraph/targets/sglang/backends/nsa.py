"""`--attention-backend nsa`: sparse attention that selects among its keys, its metadata.

Real: `NativeSparseAttnBackend`, called `DeepseekSparseAttnBackend` in later releases, with its
Triton kernels. Left out are the compiled indexer and the newer selection with its compiled planner.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
)

_TOPK = 16  # below the contexts that are drawn, so that a selection leaves keys out


def _sparse_model(runner: Any) -> None:
    """A model whose attention selects among its keys, whose KV is not quantised."""
    described = runner.model_config.hf_config
    described.architectures = ["DeepseekV32ForCausalLM"]
    described.index_topk = _TOPK
    pool = runner.token_to_kv_pool
    pool.nsa_kv_cache_store_fp8 = pool.dsa_kv_cache_store_fp8 = False


_NSA = AttentionBackend(
    name="nsa",
    places=(
        (f"{ATTENTION}.dsa_backend", "DeepseekSparseAttnBackend"),
        (f"{ATTENTION}.nsa_backend", "NativeSparseAttnBackend"),
    ),
    attention="mla",
    page_sizes=(64,),  # the backend asserts it
    fields=("cache_seqlens", "cu_seqlens_k", "page_table", "token_indices"),
    max_context_len=256,
    read=attributes(
        cache_seqlens="cache_seqlens_int32",
        cu_seqlens_k="cu_seqlens_k",
        page_table="real_page_table",
        token_table="page_table_1",
    ),
    adapt=_sparse_model,
    asserts_gpu=("seqlens_expand_triton",),
    settings=(("SGLANG_OPT_USE_TOPK_V2", "0"),),
)

target = _NSA.target
