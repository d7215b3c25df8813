"""`--attention-backend trtllm_mha`: TensorRT-LLM's multi-head attention, its metadata.

Real: `TRTLLMHAAttnBackend`, whose metadata has the form of FlashAttention's. Stood in for: the size
of a workspace that a compiled kernel tells, and a compilation ahead.
"""

from __future__ import annotations

from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
)
from fuzzgraph.targets.sglang.backends.fa3 import FA_FIELDS, FA_METADATA
from fuzzgraph.targets.sglang.backends.trtllm_mla import TRTLLM_STUBS

_TRTLLM_MHA = AttentionBackend(
    name="trtllm_mha",
    places=((f"{ATTENTION}.trtllm_mha_backend", "TRTLLMHAAttnBackend"),),
    attention="mha",
    page_sizes=(16, 32, 64),  # what ServerArgs accepts for it
    fields=FA_FIELDS,
    max_context_len=256,
    read=attributes(**FA_METADATA),
    stubs=TRTLLM_STUBS,
)

target = _TRTLLM_MHA.target
