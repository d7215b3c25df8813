"""`--attention-backend trtllm_mla`: TensorRT-LLM's latent attention, its metadata.

Real: `TRTLLMMLABackend` and the Triton kernel that builds its page table. Stood in for: the size of
a workspace that a compiled kernel tells, and a compilation ahead.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
    few_bytes,
    not_compiled,
)

TRTLLM_STUBS = (
    (f"{ATTENTION}.trtllm_mla_backend", "_multi_ctas_kv_counter_bytes", few_bytes),
    (f"{ATTENTION}.trtllm_mla_backend", "_jit_fixup_module", not_compiled),
)


def _held(backend: Any, size: int | None) -> Any:
    if size is None:
        return backend.forward_decode_metadata
    return backend.decode_cuda_graph_metadata[size]


_TRTLLM_MLA = AttentionBackend(
    name="trtllm_mla",
    places=((f"{ATTENTION}.trtllm_mla_backend", "TRTLLMMLABackend"),),
    attention="mla",
    page_sizes=(32, 64),  # what ServerArgs accepts for it
    fields=("cache_seqlens", "page_table"),
    max_context_len=256,
    held=_held,
    read=attributes(page_table="block_kv_indices", cache_seqlens="seq_lens_k"),
    stubs=TRTLLM_STUBS,
)

target = _TRTLLM_MLA.target
