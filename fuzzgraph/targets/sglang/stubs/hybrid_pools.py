"""Pools of a model with recurrent layers beside attention: the engine's own, with the world's rows.

The model is described by the engine's own configuration of Qwen3-Next, with two layers: a gated
delta net, then attention. So shapes and dtypes of states follow from the engine's own rules.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph import delta_rule
from fuzzgraph.case import EngineConfig
from fuzzgraph.case.verified_states import states_each, verifies_states
from fuzzgraph.recurrence import CONV_WIDTH
from fuzzgraph.targets.offline.cuda_on_cpu import cuda_on_cpu
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.world import FIRST_ROW

__all__ = ["FULL_LAYER", "RECURRENT_LAYER", "described_hybrid", "hybrid_kv_pool", "state_pool"]

RECURRENT_LAYER, FULL_LAYER = 0, 1
CONFIGS = "sglang.srt.configs.qwen3_next"
GDN_BACKEND = "sglang.srt.layers.attention.linear.gdn_backend"
SETTINGS = {"SGLANG_MAMBA_CONV_DTYPE": "float32"}
"""Inputs of the convolution are float32 as states are, so that sums are exact."""
_POOLS = "sglang.srt.mem_cache.memory_pool"


def described_hybrid(config: EngineConfig) -> Any:
    """The engine's description of the model. It counts the heads of all ranks."""
    return engine_module(CONFIGS).Qwen3NextConfig(
        architectures=["Qwen3NextForCausalLM"],
        hidden_size=config.num_q_heads * config.head_dim,
        intermediate_size=1,
        num_attention_heads=config.num_q_heads,
        num_key_value_heads=config.num_kv_heads,
        head_dim=config.head_dim,
        num_hidden_layers=2,
        full_attention_interval=2,
        linear_conv_kernel_dim=CONV_WIDTH,
        linear_key_head_dim=delta_rule.POSITIONS,
        linear_value_head_dim=delta_rule.HEAD_WIDTH,
        linear_num_key_heads=delta_rule.KEY_HEADS,
        linear_num_value_heads=delta_rule.HEADS,
        vocab_size=32,
    )


def state_pool(config: EngineConfig, device: torch.device, rows: int, width: int) -> Any:
    """The engine's request pool that also keeps states.

    Args:
        rows: of requests, the padding row of releases that add one left out.
        width: positions of a request.
    """
    described = described_hybrid(config)
    states = FIRST_ROW + config.req_pool_size * states_each(config)
    with cuda_on_cpu():  # up to 0.5.9 it names the device of what verifies keep
        return call_with_known(
            engine_module(_POOLS).HybridReqToTokenPool,
            size=rows,
            mamba_size=max(states, rows + 1),
            mamba_spec_state_size=config.req_pool_size,
            max_context_len=width,
            device=device.type,
            enable_memory_saver=False,
            cache_params=described.mamba2_cache_params,
            mamba_layer_ids=[RECURRENT_LAYER],
            enable_mamba_extra_buffer=False,
            speculative_num_draft_tokens=config.draft_tokens if verifies_states(config) else None,
            speculative_eagle_topk=config.spec_topk if verifies_states(config) else None,
        )


def hybrid_kv_pool(config: EngineConfig, slots: int, states: Any, **common: Any) -> Any:
    """The engine's KV pool of such a model. Values may have a width of their own.

    Args:
        slots: of the KV pool.
        states: the pool of states, which it carries.
        common: what every pool of the engine takes.
    """
    pools = engine_module(_POOLS)
    shape = dict(head_num=config.num_kv_heads, head_dim=config.head_dim)
    pool = call_with_known(
        pools.HybridLinearKVPool,
        size=slots,
        full_attention_layer_ids=[FULL_LAYER],
        mamba_pool=states,
        enable_kvcache_transpose=False,
        enable_memory_saver=False,
        **shape,
        **common,
    )
    if config.v_head_dim != config.head_dim:
        pool.full_kv_pool = pools.MHATokenToKVPool(
            slots,
            layer_num=1,
            enable_memory_saver=False,
            v_head_dim=config.v_head_dim,
            **shape,
            **common,
        )
    return pool


def in_layout(state: torch.Tensor) -> torch.Tensor:
    """States with the dimensions in which this release's kernels keep them.

    Up to 0.5.9 fused_sigmoid_gating_recurrent.py has the columns of a value together, and those of
    a key since (both in the shape that the pool gives them).
    """
    if has_module(GDN_BACKEND):
        return state
    return state.view(len(state), delta_rule.HEADS, delta_rule.POSITIONS, delta_rule.HEAD_WIDTH)
