"""Recurrent layers of vLLM: delta nets, KDA, lightning attention, Mamba, convolutions."""

from __future__ import annotations

from typing import Any

import torch

from released.row import (
    LONG,
    Table,
    below,
    decays,
    floats,
    halves,
    ints,
    longs,
    qkv,
    starts,
    zeros,
)

row = Table("vllm")
_FLA = "third_party.flash_linear_attention.ops"
_MAMBA = "model_executor.layers.mamba.ops"
_LAYERS = "model_executor.layers"


@row(f"{_FLA}.chunk")
def gated_delta_net_in_chunks(m: Any) -> None:
    q, k, v = qkv(70, 2, 4)
    m.chunk_gated_delta_rule(
        q, k, v, decays(1, 70, 4), halves(1, 70, 4).sigmoid(), initial_state=zeros(2, 4, 16, 16),
        output_final_state=True, cu_seqlens=starts(66, 4, dtype=LONG),
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@row(f"{_FLA}.fused_recurrent")
def gated_delta_net_token_by_token(m: Any) -> None:
    q, k, v = qkv(7, 2, 4)
    m.fused_recurrent_gated_delta_rule(
        q, k, v, decays(1, 7, 4), halves(1, 7, 4).sigmoid(), initial_state=floats(8, 4, 16, 16),
        cu_seqlens=starts(5, 2, dtype=LONG),
        ssm_state_indices=ints(7, 2, 3, 4, 5, 6, 1, 0, 0, 0).view(2, 5),
        num_accepted_tokens=ints(1, 2), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    m.fused_recurrent_gated_delta_rule_packed_decode(
        halves(3, 2 * 2 * 16 + 4 * 16), halves(3, 4), halves(3, 4), floats(4), floats(4), 0.25,
        floats(4, 4, 16, 16), halves(3, 1, 4, 16), ints(2, -1, 1), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@row(f"{_FLA}.fused_sigmoid_gating", f"{_FLA}.fused_gdn_prefill_post_conv")
def gates_and_delta_rule(m: Any, prefill: Any) -> None:
    q, k, v = qkv(3, 2, 4)
    m.fused_sigmoid_gating_delta_rule_update(
        floats(4), halves(3, 4), halves(3, 4), floats(4), q, k, v,
        initial_state=floats(4, 4, 16, 16), cu_seqlens=starts(1, 1, 1, dtype=LONG),
        ssm_state_indices=ints(2, 3, 1), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    prefill.fused_post_conv_prep(
        halves(5, 2 * 2 * 16 + 4 * 16), halves(5, 4), halves(5, 4), floats(4), floats(4), 2, 16, 16
    )


@row(f"{_FLA}.kda")
def kda_in_chunks(m: Any) -> None:
    q, k, v = qkv(70, 2, 2, 32)
    m.chunk_kda_with_fused_gate(
        q, k, v, halves(1, 70, 2, 32), halves(1, 70, 2).sigmoid(), floats(2), floats(2 * 32),
        initial_state=zeros(2, 2, 32, 32), output_final_state=True,
        cu_seqlens=starts(66, 4, dtype=LONG), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip
    m.fused_kda_gate(halves(5, 64), floats(2), 32)


@row(f"{_FLA}.layernorm_guard", f"{_MAMBA}.layernorm_gated")
def gated_norms(fla: Any, mamba: Any) -> None:
    fla.layer_norm_fwd(halves(6, 32), floats(32), None, 1e-6, z=halves(6, 32), is_rms_norm=True)
    mamba.rms_norm_gated(halves(6, 32), floats(32), None, z=halves(6, 32), group_size=16)


@row(f"{_LAYERS}.lightning_attn")
def lightning_attention(m: Any) -> None:
    m.lightning_attention(
        floats(1, 2, 300, 128), floats(1, 2, 300, 128) * 0.1, floats(1, 2, 300, 32),
        floats(2).abs(),
    )  # fmt: skip
    m.linear_decode_forward_triton(
        halves(3, 2, 1, 64), halves(3, 2, 1, 64), halves(3, 2, 1, 64), floats(4, 2, 64, 64),
        floats(2, 1, 1).abs(), longs(2, -1, 0),
    )  # fmt: skip


@row(f"{_MAMBA}.mamba_ssm")
def mamba_decode(m: Any) -> None:
    m.selective_state_update(
        floats(4, 4, 16, 16), halves(3, 4, 16), halves(3, 4, 1).expand(3, 4, 16),
        -floats(4, 1, 1).abs().expand(4, 16, 16), halves(3, 2, 16), halves(3, 2, 16),
        floats(4, 1).expand(4, 16), floats(4, 1).expand(4, 16), z=halves(3, 4, 16),
        dt_softplus=True, state_batch_indices=ints(2, 0, 1), out=zeros(3, 4, 16).half(),
    )  # fmt: skip


@row(f"{_MAMBA}.ssd_combined")
def mamba_prefill(m: Any) -> None:
    lens = (20, 5)
    tokens = sum(lens)
    m.mamba_chunk_scan_combined_varlen(
        halves(tokens, 4, 16), halves(tokens, 4), -floats(4).abs(), halves(tokens, 2, 16),
        halves(tokens, 2, 16), 16, starts(*lens), ints(0, 16, 20, 25), ints(1, 2), ints(0, 0, 1),
        zeros(tokens, 4, 16).half(), D=floats(4), dt_bias=floats(4), dt_softplus=True,
        initial_states=floats(2, 4, 16, 16), state_dtype=torch.float32,
    )  # fmt: skip


@row(f"{_MAMBA}.causal_conv1d")
def causal_convolutions(m: Any) -> None:
    state = halves(4, 3, 8).transpose(1, 2)
    m.causal_conv1d_fn(
        halves(9, 8).t(), halves(8, 4), halves(8), state, starts(5, 1, 3), ints(2, 3, 1),
        below(2, 3).bool(),
    )  # fmt: skip
    m.causal_conv1d_update(
        halves(3, 8), state, halves(8, 4), halves(8), "silu", conv_state_indices=ints(2, 0, 1)
    )


@row(f"{_MAMBA}.gather_initial_states", f"{_MAMBA}.scatter_states")
def states_are_gathered(gather: Any, scatter: Any) -> None:
    gather.gather_initial_states(floats(4, 2, 8), ints(2, 0, 3), below(2, 3).bool())
    scatter.scatter_states(floats(4, 2, 8), floats(3, 2, 8), ints(2, 0, 3))


@row(f"{_MAMBA}.mamba_ssm")
def mamba_decode_that_rounds_at_random(m: Any) -> None:
    m.selective_state_update(
        halves(4, 4, 16, 16), halves(3, 4, 16), halves(3, 4, 1).expand(3, 4, 16),
        -floats(4, 1, 1).abs().expand(4, 16, 16), halves(3, 2, 16), halves(3, 2, 16),
        floats(4, 1).expand(4, 16), floats(4, 1).expand(4, 16), dt_softplus=True,
        state_batch_indices=ints(2, 0, 1), out=zeros(3, 4, 16).half(),
        enable_stochastic_rounding=True, cache_philox_rounds=4,
    )  # fmt: skip
