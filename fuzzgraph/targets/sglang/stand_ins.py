"""What surrounds the engine's code on one process without a server, each piece with its reason.

Real here: `ServerArgs` (its defaults, without the probing of its constructor), `ReqToTokenPool`,
`MHATokenToKVPool` and `MLATokenToKVPool`, `ForwardBatch`, the spec-decode inputs, the attention
backend, the whole decode runner. Stood in for:

* the distributed groups, because there is one process: `OneRank`;
* the model runner and its model config, because their constructors load a model: plain objects
  with the attributes that the code under test reads, each from the case's config.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.loading import engine_module
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW

__all__ = ["ModelRunner", "OneRank", "become_one_rank", "model_runner"]

_GROUPS = ("_WORLD", "_TP", "_PP", "_ATTN_TP", "_ATTN_CP", "_MOE_EP", "_MOE_TP", "_MOE_DP")
_EXTRA_CONTEXT = 4
"""Columns of `req_to_token` beyond the context (sglang ModelRunner, init of the memory pool)."""
_MLA_HEADS = 16
"""AITER's MLA takes 4, 8 or multiples of 16 heads; the metadata does not depend on the number."""


class OneRank:
    """A process group of one: rank 0 of 1, nothing to wait for, captures on the current stream."""

    rank = 0
    rank_in_group = 0
    world_size = 1
    ca_comm = None

    def barrier(self) -> None: ...

    @contextlib.contextmanager
    def graph_capture(self, context: Any = None, stream: Any = None) -> Iterator[Any]:
        """The graph engine opens the capture itself, on its own stream."""
        yield context or SimpleNamespace(stream=stream)


def become_one_rank() -> None:
    """Make this process the only rank of every group that the release knows."""
    state = engine_module("sglang.srt.distributed.parallel_state")
    group = OneRank()
    for name in _GROUPS:
        if hasattr(state, name):
            setattr(state, name, group)


def server_args(config: EngineConfig, device: torch.device, *, verify: bool) -> Any:
    """The engine's own `ServerArgs`: its defaults, and what the case's config says.

    Its constructor is left out: it reads a model from disk and probes the machine.
    """
    module = engine_module("sglang.srt.server_args")
    args = object.__new__(module.ServerArgs)
    for entry in dataclasses.fields(module.ServerArgs):
        if entry.default_factory is not dataclasses.MISSING:
            setattr(args, entry.name, entry.default_factory())
        elif entry.default is not dataclasses.MISSING:
            setattr(args, entry.name, entry.default)
    args.model_path = ""
    args.device = device.type
    args.page_size = config.page_size
    args.cuda_graph_bs = list(config.capture_bs)
    args.cuda_graph_max_bs = config.capture_bs[-1]
    args.attention_backend = "aiter"
    args.max_running_requests = config.req_pool_size
    args.enable_cudagraph_gc = True  # spares a pass over the whole heap at every capture
    if verify:
        args.speculative_algorithm = "EAGLE"
        args.speculative_num_steps = config.spec_steps
        args.speculative_eagle_topk = config.spec_topk
        args.speculative_num_draft_tokens = config.draft_tokens
    module.set_global_server_args_for_scheduler(args)
    return args


class ModelRunner:
    """The attributes of sglang's model runner that backend and decode runner read.

    Slots instead of a `__dict__`, so that a walk over the engine's state ends here: what hangs
    below is configuration, or a pool that is reached by its own name.
    """

    __slots__ = (
        "attn_backend", "canary_manager", "device", "device_timer", "dtype", "gpu_id",
        "hisparse_coordinator", "is_draft_worker", "is_hybrid_swa", "kv_cache_dtype", "model",
        "model_config", "page_size", "req_to_token_pool", "server_args", "sliding_window_size",
        "spec_algorithm", "token_table", "token_to_kv_pool", "token_to_kv_pool_allocator",
        "tp_group", "use_ngram_embedding",
    )  # fmt: skip

    attn_backend: Any
    device: str
    model: Any
    req_to_token_pool: Any
    server_args: Any
    spec_algorithm: Any
    token_to_kv_pool: Any

    def __init__(self, **attributes: Any) -> None:
        for name, value in attributes.items():
            setattr(self, name, value)


def _model_config(config: EngineConfig, dtype: torch.dtype) -> Any:
    arch = engine_module("sglang.srt.configs.model_config").AttentionArch
    mla = config.attention == "mla"
    return SimpleNamespace(
        attention_arch=arch.MLA if mla else arch.MHA,
        context_len=config.max_context_len,
        dtype=dtype,
        get_num_kv_heads=lambda tp_size, *_: config.num_kv_heads // tp_size,
        head_dim=config.head_dim,
        hf_config=SimpleNamespace(),
        hidden_size=config.num_q_heads * config.head_dim,
        is_encoder_decoder=False,
        is_hybrid_swa=False,
        is_multimodal=False,
        num_attention_heads=_MLA_HEADS if mla else config.num_q_heads,
        num_hidden_layers=1,
        v_head_dim=config.v_head_dim,
        vocab_size=32,
    )


def request_pool(config: EngineConfig, device: torch.device) -> Any:
    """The engine's request pool with the world's rows: reserved, traps, then `req_pool_size`.

    Its `size`, which sizes the backend's buffers, counts the requests only: the rows below
    FIRST_ROW are the harness's. Releases differ in whether they add a padding row themselves.
    """
    pool_class = engine_module("sglang.srt.mem_cache.memory_pool").ReqToTokenPool
    draft = config.draft_tokens if "target_verify" in config.modes else 0
    rows = config.req_pool_size + FIRST_ROW
    with torch.device("meta"):
        added = pool_class(1, 1, "meta", False).req_to_token.shape[0] - 1
    width = config.max_context_len + _EXTRA_CONTEXT + draft
    pool = pool_class(rows - added, width, device.type, False)
    pool.size = config.req_pool_size
    return pool


def kv_pool(config: EngineConfig, device: torch.device, dtype: torch.dtype) -> Any:
    """The engine's KV pool. No kernel reads it, so it has one layer and the smallest heads."""
    pools = engine_module("sglang.srt.mem_cache.memory_pool")
    slots = (config.kv_pool_pages + FIRST_PAGE - 1) * config.page_size
    common = dict(
        page_size=config.page_size, dtype=dtype, layer_num=1, device=device.type,
        enable_memory_saver=False,
    )  # fmt: skip
    if config.attention == "mla":
        return pools.MLATokenToKVPool(slots, kv_lora_rank=1, qk_rope_head_dim=1, **common)
    return pools.MHATokenToKVPool(slots, head_num=1, head_dim=1, **common)


def model_runner(config: EngineConfig, device: torch.device, *, verify: bool) -> ModelRunner:
    """A model runner for `config` with the engine's own pools, without backend and model."""
    dtype = getattr(torch, config.dtype)
    return ModelRunner(
        canary_manager=None,
        device=device.type,
        device_timer=None,
        dtype=dtype,
        gpu_id=device.index or 0,
        hisparse_coordinator=None,
        is_draft_worker=False,
        is_hybrid_swa=False,
        kv_cache_dtype=dtype,
        model_config=_model_config(config, dtype),
        page_size=config.page_size,
        req_to_token_pool=request_pool(config, device),
        server_args=server_args(config, device, verify=verify),
        sliding_window_size=None,
        spec_algorithm=_spec_algorithm("EAGLE" if verify else None),
        token_table=None,
        token_to_kv_pool=kv_pool(config, device, dtype),
        token_to_kv_pool_allocator=SimpleNamespace(page_size=config.page_size),
        tp_group=OneRank(),
        use_ngram_embedding=False,
    )


def _spec_algorithm(name: str | None) -> Any:
    return engine_module("sglang.srt.speculative.spec_info").SpeculativeAlgorithm.from_string(name)
