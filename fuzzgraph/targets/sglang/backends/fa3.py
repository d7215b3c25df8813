"""`--attention-backend fa3` and `fa4`: FlashAttention 3, of a model's own heads or of DeepSeek's
latent rows, and 4, of a model's own heads.

Real: `FlashAttentionBackend`, its constructor, both preparations, its forwards and the writing of
KV. Modelled: the attention kernels, their planner, and the merge of two parts of a verify. Of a
latent row the rotary part is the key, and the rest key (`qv`) and value.
"""

from __future__ import annotations

import functools
from dataclasses import replace
from typing import Any

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.fp8_weights import FLASH_ATTENTION_3
from fuzzgraph.kernel_models import flash_attention, merge
from fuzzgraph.kernel_models.flash_attention_plan import get_scheduler_metadata
from fuzzgraph.memory.side_requests import SESSION_CPU
from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    FP8_KV,
    AttentionBackend,
    BackendTarget,
    Tensors,
    attributes,
)
from fuzzgraph.targets.sglang.cross_attention import cross_attention
from fuzzgraph.targets.sglang.release import engine_module

FA_METADATA = {
    "cache_seqlens": "cache_seqlens_int32",
    "page_table": "page_table",
    "cu_seqlens_q": "cu_seqlens_q",
    "cu_seqlens_k": "cu_seqlens_k",
    "swa_page_table": "swa_page_table",
    "swa_out_cache_loc": "swa_out_cache_loc",
}
"""Field -> attribute of the engine's `FlashAttentionMetadata`."""
FA_FIELDS = tuple(FA_METADATA)
_LOCAL = {
    "chunk_cu_seqlens_q": "local_query_start_loc",
    "chunk_seqused_k": "local_seqused_k",
}
"""Field -> attribute of its `LocalAttentionMetadata`."""
_ENCODER = {
    "encoder_cache_seqlens": "encoder_lens_int32",
    "encoder_cu_seqlens_k": "encoder_cu_seqlens_k",
    "encoder_page_table": "encoder_page_table",
}
"""Field -> attribute of `FlashAttentionMetadata` in a model with an encoder."""


def _read(metadata: Any) -> Tensors:
    local = getattr(metadata, "local_attn_metadata", None)
    found = attributes(**FA_METADATA)(metadata)
    return found if local is None else {**found, **attributes(**_LOCAL)(local)}


_MODULE = f"{ATTENTION}.flashattention_backend"
_PACKAGE = "sgl_kernel.flash_attn"
_CALLS = (
    ("flash_attn_with_kvcache", flash_attention.flash_attn_with_kvcache),
    ("flash_attn_varlen_func", flash_attention.flash_attn_varlen_func),
)

_KERNELS = (
    # Releases look them up in the backend's module, by one of two names, or in the package.
    *((_MODULE, name, model) for name, model in _CALLS),
    *((_MODULE, f"{name}_fa3", model) for name, model in _CALLS),
    *((_PACKAGE, name, model) for name, model in _CALLS),
    (_PACKAGE, "get_scheduler_metadata", get_scheduler_metadata),
    (_MODULE, "merge_state_v2", merge.merge_state_v2),
)


def _refuses(config: EngineConfig) -> str | None:
    """sglang flashattention_backend.py, _init_sliding_window_attn_spec_metadata asserts it."""
    if config.swa_window and config.spec_topk > 1 and config.page_size > 1:
        return f"page_size={config.page_size} with branches of drafts behind a window"
    return None


FA3 = AttentionBackend(
    name="fa3",
    places=((_MODULE, "FlashAttentionBackend"),),
    attentions=("mha",),
    page_sizes=(1, 2, 16),
    fields=FA_FIELDS,
    read=attributes(**FA_METADATA),
    max_topk=2,
    windows=True,
    unified=True,
    caps=True,
    refuses=_refuses,
    stood_in_for=("attention kernels, their planner, and the merge of two parts, by models",),
    kernels=_KERNELS,
    # Plans of 65 to 128 columns have a size of their own (`plan_size`).
    more=(*FP8_KV, ("max_head_dim", 128)),
    beside=("flashinfer", "triton"),
    on_device=(("page_sizes", (1, 2, 16, 64)),),
    fp8_weights=FLASH_ATTENTION_3,
)

_VERSION_4 = (  # by release
    "sglang.jit_kernel.flash_attention_v4",
    "sglang.kernels.ops.attention.flash_attention_v4",
)
FA4 = replace(
    FA3,
    name="fa4",
    made_with=(("fa_impl_ver", 4),),
    # Servers have these alone on Blackwell (sglang 0.5.23 overrides.py, _fa4_page_constraint).
    page_sizes=(128,),
    max_topk=1,
    kernels=tuple((module, name, model) for module in _VERSION_4 for name, model in _CALLS),
    stubs=((_MODULE, "get_device_capability", lambda *_: (10, 0)),),
    stood_in_for=("attention kernels, by models", "the device's compute capability"),
    more=(("max_head_dim", 128),),
    on_device=(),
    beside=(),
)
"""FlashAttention 4, which plans nothing. KV in FP8 is not driven."""

FA3_DRAFT = replace(FA3, places=((_MODULE, "FlashAttentionMultiStepBackend"),))
"""Holds a backend for each step of a draft."""

FA3_MLA = replace(
    FA3, part=" over latent rows", attentions=("mla",), windows=False, caps=False, more=()
)


def _name_the_device(runner: Any) -> None:
    """Metadata of chunks is made on the host and taken to `x.device` of the batch, an object that
    names no side on a CPU (see `memory.side_requests`); the session's own names the device."""
    backend = engine_module(_MODULE).FlashAttentionBackend
    made = backend._maybe_init_local_attn_metadata
    if runner.device != "cpu" or hasattr(made, _NAMED):
        return

    @functools.wraps(made)
    def on_the_sessions_device(self: Any, *given: Any) -> Any:
        return made(self, *given[:-1], SESSION_CPU)  # the device comes last

    setattr(on_the_sessions_device, _NAMED, True)
    backend._maybe_init_local_attn_metadata = on_the_sessions_device


_NAMED = "_fuzzgraph_names_the_device"

FA3_CHUNKED = replace(
    FA3,
    part=" in chunks",
    fields=(*FA_FIELDS, *_LOCAL),
    read=_read,
    max_topk=1,
    windows=False,
    chunks=True,
    beside=(),
    adapt=_name_the_device,
)
"""Llama 4's layers, on the pool of all layers (`--disable-hybrid-swa-memory`)."""

# A verify may reach into two chunks: its rows have one or two entries each.
_CHUNKED_VERIFY = replace(FA3_CHUNKED, fields=FA_FIELDS, read=attributes(**FA_METADATA))

FA3_CROSS = replace(
    cross_attention(FA3),
    fields=("cache_seqlens", "page_table", "cu_seqlens_q", "cu_seqlens_k", *_ENCODER),
    read=attributes(**FA_METADATA, **_ENCODER),
)

target = FA3.target
cross_target = FA3_CROSS.target


def fa4_target(name: str, mode: Mode) -> BackendTarget:
    """The target of FlashAttention 4 in one mode; EAGLE's verify has no virtual pages there (sglang
    0.5.23 kv_cache_hook.py, handle_unified_memory_pool)."""
    return (FA4 if mode == "decode" else replace(FA4, unified=False)).target(name, mode)


def chunked_target(name: str, mode: Mode) -> BackendTarget:
    """The target of layers that attend in chunks, in one mode."""
    kind = FA3_CHUNKED if mode == "decode" else _CHUNKED_VERIFY
    return kind.target(name, mode)


mla_target = FA3_MLA.target
