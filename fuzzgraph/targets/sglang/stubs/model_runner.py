"""What surrounds the engine's code on one process without a server, each piece with its reason.

Real here: `ServerArgs` (its defaults, without the probing of its constructor), `ReqToTokenPool`,
`MHATokenToKVPool` and `MLATokenToKVPool`, `ForwardBatch`, the spec-decode inputs, the attention
backend, the whole decode runner. Stood in for:

* the distributed groups, because there is one process: `tp_groups`;
* the device and its graphs: `runners.capture`, `cuda_on_cpu`, `prefill_device`;
* torch's compiler in piecewise prefill graphs: `piecewise_compiler`;
* the model runner and its model config, because their constructors load a model: plain objects
  with the attributes that the code under test reads, each from the case's config.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.content import content_for
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang import split_backends
from fuzzgraph.targets.sglang.attention_model import as_logits, first_layer
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.sliding_window import window_allocator, window_pool
from fuzzgraph.targets.sglang.stubs.block_index_pool import block_index_pool
from fuzzgraph.targets.sglang.stubs.fp4_kv import fp4_method
from fuzzgraph.targets.sglang.stubs.hybrid_pools import (
    hybrid_kv_pool,
    state_pool,
)
from fuzzgraph.targets.sglang.stubs.kv_store import store_kv_as_on
from fuzzgraph.targets.sglang.stubs.latent_pools import latent_window_pool
from fuzzgraph.targets.sglang.stubs.pooled_pool import pooled_allocator, slots_with_pooled
from fuzzgraph.targets.sglang.stubs.reservation import (
    BLOCK_ALGORITHMS,
    block_context,
    columns_of_rows,
)
from fuzzgraph.targets.sglang.stubs.server_args import Configuration, context_len, kv_cache_dtype
from fuzzgraph.targets.sglang.stubs.sparse_pool import sparse_kv_pool
from fuzzgraph.targets.sglang.stubs.tp_groups import attention_ranks
from fuzzgraph.targets.sglang.unified_pool import demand_unified_pool, unified_pools
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW

_EXTRA_CONTEXT = 4
"""Columns of `req_to_token` beyond the context (sglang ModelRunner, init of the memory pool)."""
_MLA_HEADS = 16
"""AITER's MLA takes 4, 8 or multiples of 16 heads; metadata does not depend on the number, so this
one stands in where no output is judged."""


_ON_HIP = ("aiter",)
"""Backends that only servers on AMD's GPUs have."""


class ModelRunner:
    """The attributes of sglang's model runner that backend and decode runner read.

    They lie in a slot, so that a walk over the engine's state ends here: what hangs below is
    configuration, or a pool that is reached by its own name.
    """

    __slots__ = ("_attributes",)

    def __init__(self, **attributes: Any) -> None:
        object.__setattr__(self, "_attributes", attributes)

    def __getattr__(self, name: str) -> Any:
        try:
            return self._attributes[name]
        except KeyError:
            raise AttributeError(
                f"the model runner's stand-in has no {name!r}, which this release reads"
            ) from None

    def __setattr__(self, name: str, value: Any) -> None:
        self._attributes[name] = value

    def beside(self, **attributes: Any) -> ModelRunner:
        """Another one with the same attributes, but for these."""
        return ModelRunner(**{**self._attributes, **attributes})


def no_forward(*_: Any, **__: Any) -> Any:
    """A model's forward without outputs: no kernel runs, the metadata is the subject."""
    return as_logits(None)


def _hf_config(config: EngineConfig) -> Any:
    """A real model description, by which the engine tells architectures apart.

    It counts the heads of all ranks, where a case says those of one.
    """
    from transformers import LlamaConfig

    ranks = attention_ranks(config).world_size
    described = LlamaConfig(
        architectures=["LlamaForCausalLM"],
        hidden_size=ranks * config.num_q_heads * config.head_dim,
        intermediate_size=1,
        num_attention_heads=ranks * config.num_q_heads,
        num_hidden_layers=first_layer(config) + _layers(config),
        num_key_value_heads=ranks * config.num_kv_heads,
        vocab_size=32,
    )
    described.max_source_positions = config.max_encoder_len
    described.attn_logit_softcapping = float(config.logit_cap) or None
    return described


def _layers(config: EngineConfig) -> int:
    """Those that the config names, else one for each kind: behind a window, over the tokens of an
    encoder, or beside one that selects blocks of its keys."""
    kinds = len(config.layer_types or group_configs(config))
    return kinds + (config.max_encoder_len > 0) + (config.index_block > 0)


def latent_widths(config: EngineConfig) -> dict[str, int]:
    """kv_lora_rank and qk_rope_head_dim of a latent row, as the engine calls them.

    They are 512 and 64 in every DeepSeek model, and all that FlashMLA's and CUTLASS's kernels are
    built for. A case has the narrow ones of its config instead: no rule of a caller depends on
    them, and wide rows only cost time. What a kernel's host code says about widths is therefore
    not held against a case.
    """
    # Where no output is judged the rotary part may be missing; the engine needs a column.
    return {
        "kv_lora_rank": config.v_head_dim,
        "qk_rope_head_dim": max(1, config.head_dim - config.v_head_dim),
    }


def _hidden_size(config: EngineConfig) -> int:
    """Columns of a token's embedding: where a model takes embeddings, of its query, key and value,
    which `content.Content.weights` has packed."""
    if config.image_len:
        return int(content_for(config).weights["embed"].shape[1])
    return config.num_q_heads * config.head_dim


def _model_config(
    config: EngineConfig, context: int, dtype: torch.dtype, judged: bool, hybrid: Any
) -> Any:
    arch = engine_module("sglang.srt.configs.model_config").AttentionArch
    mla = config.attention == "mla"
    hf_config = hybrid or _hf_config(config)
    shared = attention_ranks(config).world_size
    heads = (_MLA_HEADS if mla and not judged else config.num_q_heads) * shared
    kv_heads = config.num_kv_heads * shared
    return Stub(
        attention_arch=arch.MLA if mla else arch.MHA,
        context_len=context,
        dtype=dtype,
        get_num_kv_heads=lambda ranks, *_: max(1, kv_heads // ranks),
        head_dim=config.head_dim,
        hf_config=hf_config,
        hf_text_config=hf_config,
        hidden_size=_hidden_size(config),
        is_draft_model=False,
        is_encoder_decoder=config.max_encoder_len > 0,
        is_hybrid_swa=config.swa_window > 0,
        is_local_attention_model=config.attention_chunk_size > 0,
        is_matryoshka=False,
        is_mla_breakable_cuda_graph_supported=False,
        is_multimodal=config.image_len > 0,
        linear_attn_registry_result=None,
        model_is_mrope=config.image_len > 0,
        get_max_num_attention_heads=lambda *_: heads,
        num_attention_heads=heads,
        num_hidden_layers=hf_config.num_hidden_layers,
        # Before a query absorbs the projection of keys it is as wide as a value, here as a latent.
        qk_nope_head_dim=config.v_head_dim,
        **latent_widths(config),
        requires_mm_token_modalities=False,
        scaling=config.head_dim**-0.5,
        spec_hidden_size=config.num_q_heads * config.head_dim,
        swa_v_head_dim=config.v_head_dim,
        v_head_dim=config.v_head_dim,
        vocab_size=32,
    )


def request_pool(
    config: EngineConfig, device: torch.device, hybrid: Any = None, columns: int = 0
) -> Any:
    """The engine's request pool with the world's rows: reserved, traps, then `req_pool_size`.

    Its `size`, which sizes the backend's buffers, counts the requests only: the rows below
    FIRST_ROW are the harness's. Releases differ in whether they add a padding row themselves.

    Args:
        hybrid: the engine's description of a model with recurrent layers; None for others.
        columns: of a row, where the engine sizes rows for what it reserves; 0 elsewhere.
    """
    pool_class = engine_module("sglang.srt.mem_cache.memory_pool").ReqToTokenPool
    widened = {"target_verify", "draft_extend"} & set(config.modes)
    draft = config.draft_tokens if widened else 0
    steps = config.spec_steps + (config.draft_branches == "chosen")  # see `_drafted` of drafts
    draft += config.spec_topk * steps if "draft" in config.modes else 0
    rows = config.req_pool_size + FIRST_ROW
    with torch.device("meta"):
        added = pool_class(1, 1, "meta", False).req_to_token.shape[0] - 1
    # The tokens of an encoder lie in front of a request's own.
    width = config.max_encoder_len + config.max_context_len + _EXTRA_CONTEXT + draft
    width = columns or width
    if hybrid is not None:
        pool = state_pool(config, device, hybrid, rows - added, width)
    else:
        pool = pool_class(rows - added, width, device.type, False)
    pool.size = config.req_pool_size
    return pool


def kv_pool(
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    requests: Any = None,
    hybrid: Any = None,
    server_args: Any = None,
) -> Any:
    """The engine's KV pool: of one layer, or of two kinds of layers with one each.

    Args:
        requests: the request pool, which has the states of recurrent layers.
        hybrid: the engine's description of a model that has some.
        server_args: the engine's own, where KV is in FP4.
    """
    pools = engine_module("sglang.srt.mem_cache.memory_pool")
    slots = (config.kv_pool_pages + FIRST_PAGE - 1) * config.page_size
    slots = slots_with_pooled(config, slots)
    common = dict(page_size=config.page_size, dtype=dtype, device=device.type)
    if config.swa_window and config.attention == "mla":
        return latent_window_pool(config, slots, latent_widths(config), **common)
    if config.swa_window:
        return window_pool(config, slots, **common)
    if hybrid is not None:
        return hybrid_kv_pool(config, hybrid, slots, requests.mamba_pool, **common)
    if config.index_group > 1:
        return block_index_pool(config, slots, requests, **common)
    if config.index_block:
        return sparse_kv_pool(config, slots, **common)
    first, layers = first_layer(config), _layers(config)
    common |= dict(layer_num=layers, start_layer=first, end_layer=first + layers - 1)
    common |= dict(enable_memory_saver=False)
    if config.attention == "mla":
        return pools.MLATokenToKVPool(slots, **latent_widths(config), **common)
    if config.kv_dtype == "nvfp4":
        common |= dict(quant_method=fp4_method(config, layers, device, server_args))
    return pools.MHATokenToKVPool(
        slots,
        head_num=config.num_kv_heads,
        head_dim=config.head_dim,
        v_head_dim=config.v_head_dim,
        **common,
    )


def _kv_dtype(config: EngineConfig) -> torch.dtype:
    """The dtype of KV as the engine names it (sglang kv_cache_dtype.py configure_kv_cache_dtype).

    Raises:
        AdapterUnavailable: torch has no such dtype.
    """
    if config.kv_dtype != "nvfp4":
        return content_for(config).storage_dtype
    found = getattr(torch, "float4_e2m1fn_x2", None)
    if not isinstance(found, torch.dtype):
        raise AdapterUnavailable("kv_dtype='nvfp4' needs torch 2.8 or later (float4_e2m1fn_x2)")
    return found


def _kv_memory(
    config: EngineConfig,
    device: torch.device,
    dtype: torch.dtype,
    requests: Any,
    hybrid: Any,
    server_args: Any,
) -> tuple[Any, Any]:
    """The KV pool and its allocator, of which a backend asks for the maps of slots alone."""
    if config.virtual_pages:
        demand_unified_pool()
        slots = (config.kv_pool_pages + FIRST_PAGE) * config.page_size
        return unified_pools(config, slots, device, dtype)
    kv = kv_pool(config, device, dtype, requests, hybrid, server_args)
    if config.swa_window:
        return kv, window_allocator(config, kv, device)
    if config.pooled_block:
        return kv, pooled_allocator(config, kv, device)
    return kv, Stub(page_size=config.page_size, get_kvcache=lambda: kv)


def model_runner(
    config: EngineConfig,
    device: torch.device,
    *,
    backend: str,
    speculative: bool = False,
    drafts: bool = False,
    prefill: str = "",
    judged: bool = False,
    hybrid: Any = None,
    arguments: Mapping[str, Any] = MappingProxyType({}),
) -> ModelRunner:
    """A model runner for `config` with the engine's own pools, without backend and model.

    Args:
        backend: name of the attention backend.
        speculative: whether it verifies drafts.
        drafts: whether it is the draft worker's.
        prefill: which kind of graphs prefills get, by the engine's name.
        judged: whether a model with a layer of attention runs on it.
        hybrid: the engine's description of a model with recurrent layers; None for others.
        arguments: of the server, beyond those that follow from the config.
    """
    dtype = getattr(torch, config.dtype)
    spec = speculative or drafts
    settings = Configuration(
        config,
        device,
        backend=backend,
        speculative=spec,
        prefill=prefill,
        more=arguments,
    )
    stored = _kv_dtype(config)
    if (judged or prefill) and device.type == "cpu":
        store_kv_as_on("hip" if backend in _ON_HIP else "cuda")
    context, columns = context_len(config), 0
    if settings.server_args.speculative_algorithm in BLOCK_ALGORITHMS:
        context = block_context(config, backend)
    if "target_verify" in config.modes:
        columns = columns_of_rows(context, settings.server_args)
    requests = request_pool(config, device, hybrid, columns)
    kv, allocator = _kv_memory(config, device, stored, requests, hybrid, settings.server_args)
    width = config.draft_tokens if speculative else 1
    group = settings.everyone
    prefills, decodes = split_backends.names_by_mode(config, backend)
    model = _model_config(config, context, dtype, judged, hybrid)
    settings.describe(model)
    runner = ModelRunner(
        **{**_SWITCHED_OFF, **_kinds_of(hybrid)},
        configuration=settings,
        attention_chunk_size=config.attention_chunk_size or None,
        attn_backend=None,
        attn_cp_size=1,
        attn_dcp_size=1,
        decode_attention_backend_str=decodes,
        decode_num_tokens_per_bs=lambda *_, **__: width,
        decode_num_tokens_per_req=lambda *_, **__: width,
        device=device.type,
        dp_size=config.dp_size,
        dtype=dtype,
        gpu_id=device.index or 0,
        is_draft_worker=drafts,
        is_hybrid_swa=config.swa_window > 0,
        kv_cache_dtype=stored,
        kv_cache_dtype_str=kv_cache_dtype(config),
        max_running_requests=config.req_pool_size,
        model_config=model,
        page_size=config.page_size,
        prefill_attention_backend_str=prefills,
        ps=Stub(
            tp_size=group.world_size,
            attn_tp_size=attention_ranks(config).world_size,
            attn_dp_size=config.dp_size,
            attn_cp_size=1,
            attn_dcp_size=1,
        ),
        req_to_token_pool=requests,
        server_args=settings.server_args,
        sliding_window_size=config.swa_window or None,
        spec_algorithm=_spec_algorithm(settings.server_args.speculative_algorithm),
        token_to_kv_pool=kv,
        token_to_kv_pool_allocator=allocator,
        tp_rank=group.rank,
        tp_size=group.world_size,
        use_mla_backend=config.attention == "mla",
        tp_group=group,
    )
    runner.kv_index_translator = index_translator(runner, config, requests)
    return runner


def draft_layer_runner(first: ModelRunner, config: EngineConfig, device: torch.device) -> Any:
    """The model runner of a further layer of a draft model: it shares the request pool and the map
    of a window's slots, and has a KV pool of its own (sglang tp_worker.py
    _init_multi_layer_eagle_model_runners, model_runner's init of memory pools)."""
    kv = kv_pool(config, device, first.kv_cache_dtype)
    if config.swa_window:
        kv.register_mapping(first.token_to_kv_pool_allocator.full_to_swa_index_mapping)
    runner = first.beside(token_to_kv_pool=kv)
    runner.kv_index_translator = index_translator(runner, config, runner.req_to_token_pool)
    return runner


_SWITCHED_OFF: Mapping[str, Any] = {
    # Features that are switched off, and objects that only they need.
    "canary_manager": None,
    "capture_head_hooks": (),
    "capture_tail_hooks": (),
    "device_timer": None,
    "get_aux_hidden_states_width": lambda: None,
    "get_pp_proxy_dspark_hidden_size": lambda: None,
    "get_pp_proxy_residual_num_blocks": lambda: None,
    "get_pp_proxy_topk_size": lambda: None,
    "hisparse_coordinator": None,
    "hybrid_lightning_config": None,
    "kimi_linear_config": None,
    "linear_attn_model_spec": None,
    "lora_manager": None,
    "model": None,
    "ngram_embedding_manager": Stub(
        enabled=False, table=None, update_after_verify=lambda **_: None
    ),
    "spec_aux_config": Stub(draft_model_config=None),
    "token_table": None,
    "use_ngram_embedding": False,
}


_KINDS = {
    "qwen3_next": "hybrid_gdn_config",
    "falcon_h1": "mamba2_config",
    "lfm2": "mamba2_config",
    "nemotron_h": "mamba2_config",
    "kimi_linear": "kimi_linear_config",
    "bailing_hybrid": "hybrid_lightning_config",
}


def _kinds_of(hybrid: Any) -> dict[str, Any]:
    """Where a runner of 0.5.16 and before has the description of a model with recurrent layers."""
    kind = _KINDS.get(getattr(hybrid, "model_type", ""))
    named = {name: hybrid if name == kind else None for name in _KINDS.values()}
    return {**named, "mambaish_config": hybrid}


def index_translator(runner: ModelRunner, config: EngineConfig, requests: Any) -> Any:
    """The engine's own, where the release has one, over the page map of a request pool."""
    name = "sglang.srt.mem_cache.kv_index_translator"
    if not has_module(name):
        return None
    return call_with_known(
        engine_module(name).KVIndexTranslator,
        req_to_token=requests.req_to_token,
        token_to_kv_pool_allocator=runner.token_to_kv_pool_allocator,
        token_to_kv_pool=runner.token_to_kv_pool,
        page_size=config.page_size,
        device=runner.device,
        is_draft_worker=False,
    )


def _spec_algorithm(name: str | None) -> Any:
    return engine_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm.from_string(name)
