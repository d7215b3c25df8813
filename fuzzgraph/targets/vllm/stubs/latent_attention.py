"""What every backend of latent attention asks for beside its own kernels."""

from __future__ import annotations

from fuzzgraph.kernel_models.paged_store import concat_and_cache_mla
from fuzzgraph.targets.offline.kernel_arguments import put_model
from fuzzgraph.targets.vllm.release import engine_module, has_module

_LAYER = "vllm.model_executor.layers.attention.mla_attention"
_OPERATORS = "vllm._custom_ops"
_PREFILL = "vllm.v1.attention.backends.mla.prefill"


def put_latent_attention() -> None:
    """Store latent rows by the model of the kernel, let rows be of any width, and have a backend
    for prefills; once per process, before a session opens.

    Kernels are built for rows of 576 columns. No prefill ever runs, but from 0.25 on builders want
    a backend for it: FlashAttention's, without the checks of what its kernels were tuned for.
    """
    put_model(engine_module(_OPERATORS), "concat_and_cache_mla", concat_and_cache_mla)
    engine_module(_LAYER).MLACommonBackend.get_supported_head_sizes = list  # none: any
    if has_module(f"{_PREFILL}.selector"):
        backend = engine_module(f"{_PREFILL}.flash_attn").FlashAttnPrefillBackend
        selector = engine_module(f"{_PREFILL}.selector")
        selector._auto_select_mla_prefill_backend = lambda *_: backend
