"""`--attention-backend fa3`: FlashAttention 3's metadata.

Real: `FlashAttentionBackend`, its constructor and both preparations. Its kernels and the planner of
`sgl_kernel` are left out.
"""

from __future__ import annotations

from fuzzgraph.kernel_models.flash_attention import flash_attn_with_kvcache
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
)

FA_METADATA = {
    "cache_seqlens": "cache_seqlens_int32",
    "page_table": "page_table",
    "cu_seqlens_q": "cu_seqlens_q",
    "cu_seqlens_k": "cu_seqlens_k",
}
"""Field -> attribute of the engine's `FlashAttentionMetadata`."""
FA_FIELDS = tuple(FA_METADATA)

_MODULE = f"{ATTENTION}.flashattention_backend"

_FA3 = AttentionBackend(
    name="fa3",
    places=((_MODULE, "FlashAttentionBackend"),),
    attention="mha",
    page_sizes=(1, 2, 16),
    fields=FA_FIELDS,
    read=attributes(**FA_METADATA),
    kernels=((_MODULE, "flash_attn_with_kvcache", flash_attn_with_kvcache),),
)

target = _FA3.target
