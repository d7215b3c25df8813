"""AITER's attention: ragged decode, unified, latent, and prefill."""

from fuzzgraph.kernel_models.aiter.latent import mla_decode_fwd, mla_prefill_fwd
from fuzzgraph.kernel_models.aiter.persistent import (
    get_mla_metadata_info_v1,
    get_mla_metadata_v1,
)
from fuzzgraph.kernel_models.aiter.prefill import (
    flash_attn_varlen_func_aiter,
    mha_batch_prefill_func,
)
from fuzzgraph.kernel_models.aiter.ragged import paged_attention_ragged
from fuzzgraph.kernel_models.aiter.unified import unified_attention

__all__ = [
    "flash_attn_varlen_func_aiter",
    "get_mla_metadata_info_v1",
    "get_mla_metadata_v1",
    "mha_batch_prefill_func",
    "mla_decode_fwd",
    "mla_prefill_fwd",
    "paged_attention_ragged",
    "unified_attention",
]
