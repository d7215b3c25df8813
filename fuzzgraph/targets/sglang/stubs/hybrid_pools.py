"""Pools of a model with recurrent layers beside attention: the engine's own, with the world's rows.

A model is described by an engine's own configuration: Qwen3-Next's with two layers, a gated delta
net, then attention; Kimi Linear's and Bailing's likewise; LFM2's with attention first, and
Nemotron-H's with attention, then Mamba2; Falcon-H1's with one, which has Mamba2 and attention side
by side. So shapes and dtypes of states follow from the engine's own rules.
"""

from __future__ import annotations

import os
from typing import Any, Literal

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.case.verified_states import (
    requests_with_state,
    state_slots_each,
    verifies_states,
)
from fuzzgraph.recurrent_layers import channel_decay, decayed_attention, delta_rule, mamba2
from fuzzgraph.recurrent_layers.gated_convolution import GATED_COLUMNS, GATED_TAPS
from fuzzgraph.recurrent_layers.short_convolution import CONV_WIDTH
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.world import FIRST_ROW

__all__ = [
    "described_bailing",
    "described_delta_net",
    "described_kimi",
    "described_lfm2",
    "described_mamba2",
    "described_nemotron",
    "hybrid_kv_pool",
    "refused_period",
    "state_pool",
]

QWEN, FALCON = "sglang.srt.configs.qwen3_next", "sglang.srt.configs.falcon_h1"
KIMI, BAILING = "sglang.srt.configs.kimi_linear", "sglang.srt.configs.bailing_hybrid"
LFM2 = "sglang.srt.configs.lfm2"
NEMOTRON_DESCRIPTION = "sglang.srt.configs.nemotron_h"
GDN_BACKEND = "sglang.srt.layers.attention.linear.gdn_backend"
LIGHTNING_BACKEND = "sglang.srt.layers.attention.linear.lightning_backend"
KDA_BACKEND = "sglang.srt.layers.attention.linear.kda_backend"
_CONV_DTYPE = "SGLANG_MAMBA_CONV_DTYPE"
"""By which servers choose the dtype of a convolution's kept inputs; bfloat16 without it. Servers of
float16 models set it to theirs (sglang configs/lfm2_moe.py), and no kernel of prompts compiles for
float32 beside half precision (reports/compiled.md). States are float32."""
_POOLS = "sglang.srt.mem_cache.memory_pool"


FALCON_CHUNK = CONV_WIDTH
"""Tokens of a chunk of Mamba2's kernels: the least; intervals of tracking are no shorter."""
MAMBA_CHUNK = 16
"""Tokens of a chunk of Mamba2's kernels where prompts are computed: few, so that prompts have
several."""


def _attention(config: EngineConfig) -> dict[str, Any]:
    """What both descriptions say of attention. They count the heads of all ranks."""
    return dict(
        hidden_size=config.num_q_heads * config.head_dim,
        intermediate_size=1,
        num_attention_heads=config.num_q_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        vocab_size=32,
    )


def _named(
    config: EngineConfig, full: str, linear: str, first: Literal["full", "linear"]
) -> list[str]:
    """The layers by the names that a description gives them.

    Args:
        first: which of the two a model begins with where the config names none.
    """
    names = {"full_attention": full, "linear_attention": linear}
    if config.layer_types:
        return [names[kind] for kind in config.layer_types]
    return [full, linear] if first == "full" else [linear, full]


def layer_period(config: EngineConfig) -> int:
    """Every how many layers one sees all keys, where a description says no more than that."""
    return 1 + config.layer_types.index("full_attention") if config.layer_types else 2


def refused_period(config: EngineConfig) -> str | None:
    """Why such a description cannot say the config's layers; None if it can."""
    period = layer_period(config)
    for place, kind in enumerate(config.layer_types, 1):
        if (kind == "full_attention") != (place % period == 0):
            return f"layer_types has no full_attention at exactly every {period} layers"
    return None


def described_mamba2(config: EngineConfig) -> Any:
    """The engine's description of a model whose layer has Mamba2 beside attention."""
    heads = mamba2.scan_heads(config)
    return engine_module(FALCON).FalconH1Config(
        architectures=["FalconH1ForCausalLM"],
        num_hidden_layers=1,
        mamba_d_ssm=heads.output,
        mamba_n_heads=heads.values,
        mamba_d_state=heads.key_width,
        mamba_d_conv=CONV_WIDTH,
        mamba_chunk_size=FALCON_CHUNK,
        **_attention(config),
    )


def described_nemotron(config: EngineConfig) -> Any:
    """The engine's description of a model with a layer of attention, and one of Mamba2 behind it.

    Up to 0.5.17 Triton attention asks the pool for values of layer 0 (sglang triton_backend.py,
    `get_value_buffer(0)` in `__init__`).
    """
    heads = mamba2.scan_heads(config)
    return engine_module(NEMOTRON_DESCRIPTION).NemotronHConfig(
        architectures=["NemotronHForCausalLM"],
        layers_block_type=_named(config, full="attention", linear="mamba", first="full"),
        mamba_num_heads=heads.values,
        mamba_head_dim=heads.value_width,
        mamba_n_groups=1,
        n_groups=1,  # the name that checkpoints have, by which shapes of states go
        ssm_state_size=heads.key_width,
        mamba_d_conv=CONV_WIDTH,
        mamba_chunk_size=MAMBA_CHUNK,
        **_attention(config),
    )


def described_delta_net(config: EngineConfig) -> Any:
    """The engine's description of a model with a gated delta net and a layer of attention."""
    heads = delta_rule.delta_heads(config)
    return engine_module(QWEN).Qwen3NextConfig(
        architectures=["Qwen3NextForCausalLM"],
        num_hidden_layers=len(config.layer_types) or 2,
        full_attention_interval=layer_period(config),
        linear_conv_kernel_dim=CONV_WIDTH,
        linear_key_head_dim=heads.key_width,
        linear_value_head_dim=heads.value_width,
        linear_num_key_heads=heads.keys * config.attn_tp_size,
        linear_num_value_heads=heads.values * config.attn_tp_size,
        **_attention(config),
    )


def described_kimi(config: EngineConfig) -> Any:
    """The engine's description of a model with a layer of KDA and one of attention.

    The attention of Kimi Linear is latent; one with keys and values in its place takes the same
    backend beside KDA's, and is what other targets judge.
    """
    named = _named(config, full="full", linear="kda", first="linear")
    heads = channel_decay.channel_heads(config)
    return engine_module(KIMI).KimiLinearConfig(
        architectures=["KimiLinearForCausalLM"],
        num_hidden_layers=len(named),
        linear_attn_config={  # counted from 1
            "kda_layers": [place for place, kind in enumerate(named, 1) if kind == "kda"],
            "full_attn_layers": [place for place, kind in enumerate(named, 1) if kind != "kda"],
            "num_heads": heads.values * config.attn_tp_size,
            "head_dim": heads.key_width,
            "short_conv_kernel_size": CONV_WIDTH,
            "gate_lower_bound": channel_decay.SAFE_GATE_BOUND if config.safe_gate else None,
        },
        **_attention(config),
    )


def described_bailing(config: EngineConfig) -> Any:
    """The engine's description of a model with a layer of lightning attention and one of softmax.

    The engine gives both as many heads as the description says; the states are those of the former,
    and the pool of keys has its size from the config.
    """
    return engine_module(BAILING).BailingHybridConfig(
        architectures=["BailingMoeV2_5ForCausalLM"],
        num_hidden_layers=len(config.layer_types) or 2,
        layer_group_size=layer_period(config),
        **{
            **_attention(config),
            "num_attention_heads": decayed_attention.LINEAR_HEADS,
            "head_dim": decayed_attention.LINEAR_WIDTH,
        },
    )


def described_lfm2(config: EngineConfig) -> Any:
    """The engine's description of a model with a layer of attention and a short convolution.

    Attention is numbered first, of which Triton's backend asks the values of layer 0 up to 0.5.17.
    """
    attention = {**_attention(config), "hidden_size": GATED_COLUMNS}
    named = _named(config, full="full_attention", linear="conv", first="full")
    del attention["head_dim"]  # it has none; the pool of keys has its size from the config
    return engine_module(LFM2).Lfm2Config(
        architectures=["Lfm2ForCausalLM"],
        num_hidden_layers=len(named),
        layer_types=named,
        conv_L_cache=GATED_TAPS,
        **attention,
    )


def state_pool(
    config: EngineConfig, device: torch.device, described: Any, rows: int, width: int
) -> Any:
    """The engine's request pool that also keeps states.

    Args:
        described: the engine's description of the model.
        rows: of requests, the padding row of releases that add one left out.
        width: positions of a request.
    """
    states = FIRST_ROW + requests_with_state(config) * state_slots_each(config)
    # Rows and slots of the harness come before both. Where a server has no fewer states than rows,
    # neither has this pool.
    if not config.state_pool_size:
        states = max(states, rows + 1)
    os.environ[_CONV_DTYPE] = config.dtype  # read as `mamba2_cache_params` is
    with cuda_on_cpu():  # up to 0.5.9 it names the device of what verifies keep
        return call_with_known(
            engine_module(_POOLS).HybridReqToTokenPool,
            size=rows,
            mamba_size=states,
            # Rings of verifies lie by the request's row.
            mamba_spec_state_size=rows if config.state_ring_len else config.req_pool_size,
            max_context_len=width,
            device=device.type,
            enable_memory_saver=False,
            cache_params=described.mamba2_cache_params,
            mamba_layer_ids=list(described.mamba2_cache_params.layers),
            enable_mamba_extra_buffer=config.state_track_interval > 0,
            enable_linear_replayssm=config.state_ring_len > 0 and not verifies_states(config),
            enable_linear_replayssm_spec=config.state_ring_len > 0 and verifies_states(config),
            linear_replayssm_cache_len=config.state_ring_len,
            speculative_num_draft_tokens=config.draft_tokens if verifies_states(config) else None,
            speculative_eagle_topk=config.spec_topk if verifies_states(config) else None,
        )


def hybrid_kv_pool(
    config: EngineConfig, described: Any, slots: int, states: Any, **common: Any
) -> Any:
    """The engine's KV pool of such a model. Values may have a width of their own.

    Args:
        described: the engine's description of the model.
        slots: of the KV pool.
        states: the pool of states, which it carries.
        common: what every pool of the engine takes.
    """
    pools = engine_module(_POOLS)
    shape = dict(head_num=config.num_kv_heads, head_dim=config.head_dim)
    pool = call_with_known(
        pools.HybridLinearKVPool,
        size=slots,
        full_attention_layer_ids=list(described.full_attention_layer_ids),
        mamba_pool=states,
        enable_kvcache_transpose=False,
        enable_memory_saver=False,
        **shape,
        **common,
    )
    if config.v_head_dim != config.head_dim:
        pool.full_kv_pool = pools.MHATokenToKVPool(
            slots,
            layer_num=len(described.full_attention_layer_ids),
            enable_memory_saver=False,
            v_head_dim=config.v_head_dim,
            **shape,
            **common,
        )
    return pool
