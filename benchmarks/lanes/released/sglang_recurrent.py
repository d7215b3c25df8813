"""Recurrent layers of sglang: delta nets, KDA, lightning attention, Mamba, convolutions."""

from __future__ import annotations

from typing import Any

import torch

from released.row import (
    LONG,
    Table,
    decays,
    floats,
    halves,
    ints,
    longs,
    qkv,
    starts,
    zeros,
)

row = Table("sglang")
_FLA = "kernels.ops.attention.fla"
_LINEAR = "kernels.ops.attention.linear"


@row(f"{_FLA}.chunk")
def gated_delta_net_in_chunks(m: Any) -> None:
    q, k, v = qkv(70, 2, 4)
    m.chunk_gated_delta_rule(
        q, k, v, decays(1, 70, 4), halves(1, 70, 4).sigmoid(),
        initial_state=zeros(3, 4, 16, 16), initial_state_indices=ints(2, 0),
        cu_seqlens=starts(66, 4, dtype=LONG), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@row(f"{_FLA}.fused_recurrent")
def gated_delta_net_token_by_token(m: Any) -> None:
    q, k, v = qkv(7, 2, 4)
    m.fused_recurrent_gated_delta_rule(
        q, k, v, decays(1, 7, 4), halves(1, 7, 4).sigmoid(), initial_state=floats(2, 4, 16, 16),
        output_final_state=True, cu_seqlens=starts(5, 2, dtype=LONG),
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@row(f"{_FLA}.fused_recurrent")
def gated_delta_net_verify(m: Any) -> None:
    q, k, v = qkv(6, 2, 4)
    m.fused_recurrent_gated_delta_rule_update(
        q, k, v, decays(1, 6, 4), halves(1, 6, 4).sigmoid(),
        initial_state_source=floats(3, 4, 16, 16), initial_state_indices=ints(2, 0),
        cu_seqlens=starts(3, 3, dtype=LONG), use_qk_l2norm_in_kernel=True,
        disable_state_update=True, intermediate_states_buffer=zeros(3, 3, 4, 16, 16),
        intermediate_state_indices=ints(0, 1), cache_steps=3,
    )  # fmt: skip


@row(f"{_FLA}.fused_recurrent")
def gated_delta_net_decode(m: Any) -> None:
    m.fused_recurrent_gated_delta_rule_packed_decode(
        halves(3, 2 * 2 * 16 + 4 * 16), halves(3, 4), halves(3, 4), floats(4), floats(4), 0.25,
        floats(4, 4, 16, 16), halves(3, 1, 4, 16), ints(2, -1, 0), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@row(f"{_FLA}.fused_recurrent")
def kda_decode(m: Any) -> None:
    m.fused_recurrent_kda_packed_decode(
        halves(3, 3 * 2 * 16), halves(3, 2 * 16), halves(3, 2), floats(2), floats(2 * 16), 0.25,
        floats(4, 2, 16, 16), halves(3, 1, 2, 16), ints(2, -1, 0), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@row(f"{_FLA}.kda")
def kda_in_chunks(m: Any) -> None:
    q, k, v = qkv(70, 2, 2, 32)
    m.chunk_kda(
        q, k, v, halves(1, 70, 2, 32), halves(1, 70, 2).sigmoid(),
        initial_state=zeros(3, 2, 32, 32), initial_state_indices=ints(2, 0),
        cu_seqlens=starts(66, 4, dtype=LONG),
        use_qk_l2norm_in_kernel=True, A_log=floats(2), dt_bias=floats(2 * 32),
    )  # fmt: skip


@row(f"{_FLA}.kda")
def kda_scores_of_chunks(m: Any) -> None:
    q, k, _ = qkv(70, 2, 2, 32)
    m.chunk_kda_scaled_dot_kkt_fwd(
        q, k, decays(1, 70, 2, 32), halves(1, 70, 2).sigmoid().float(), 0.2,
        cu_seqlens=starts(66, 4, dtype=LONG),
    )  # fmt: skip


@row(f"{_FLA}.chunk_intra_token_parallel")
def kda_scores_by_token(m: Any) -> None:
    q, k, _ = qkv(20, 2, 2, 32)
    m.chunk_kda_fwd_intra_token_parallel(
        q, k, decays(1, 20, 2, 32), halves(1, 20, 2).sigmoid(), zeros(1, 20, 2, 64),
        zeros(1, 20, 2, 16), 0.2, starts(17, 3, dtype=LONG),
    )  # fmt: skip


@row(f"{_FLA}.cumsum")
def sums_of_decays(m: Any) -> None:
    lens = starts(66, 4, dtype=LONG)
    m.chunk_local_cumsum(decays(1, 70, 4), 64, cu_seqlens=lens)
    m.chunk_local_cumsum(decays(1, 70, 2, 16), 64, cu_seqlens=lens)


@row(f"{_FLA}.layernorm_gated")
def gated_norm(m: Any) -> None:
    m.rms_norm_gated(
        x=halves(6, 32), weight=floats(32), bias=None, z=halves(6, 32), group_size=16,
        is_rms_norm=True,
    )  # fmt: skip


@row(f"{_FLA}.fused_norm_gate")
def gated_norm_of_kda(m: Any) -> None:
    m.layer_norm_gated_fwd(halves(6, 32), halves(6, 32), floats(32), None, is_rms_norm=True)
    m.layer_norm_gated_fwd(halves(2, 1024), halves(2, 1024), floats(1024), None, is_rms_norm=True)


@row(f"{_FLA}.l2norm")
def l2_norm(m: Any) -> None:
    m.l2norm_fwd(halves(6, 32))
    m.l2norm_fwd(halves(2, 1024))


@row(f"{_LINEAR}.fused_gdn_gating")
def gates_of_a_delta_net(m: Any) -> None:
    m.fused_gdn_gating(floats(4), halves(3, 4), halves(3, 4), floats(4))


@row(f"{_LINEAR}.fused_sigmoid_gating_recurrent")
def gates_and_delta_rule(m: Any) -> None:
    q, k, v = qkv(3, 2, 4)
    m.fused_sigmoid_gating_delta_rule_update(
        floats(4), halves(3, 4), floats(4), 1.0, 20.0, q, k, v, halves(3, 4),
        floats(4, 4, 16, 16), ints(2, -1, 0), use_qk_l2norm_in_kernel=True,
        cu_seqlens=starts(1, 1, 1, dtype=LONG),
    )  # fmt: skip


@row(f"{_LINEAR}.lightning_attn")
def lightning_attention(m: Any) -> None:
    m.lightning_attention(
        floats(1, 2, 300, 128), floats(1, 2, 300, 128) * 0.1, floats(1, 2, 300, 32),
        floats(2).abs(),
    )  # fmt: skip


@row(f"{_LINEAR}.lightning_attn")
def lightning_attention_decode(m: Any) -> None:
    m.linear_decode_forward_triton(
        halves(3, 2, 1, 64), halves(3, 2, 1, 64), halves(3, 2, 1, 64), floats(4, 2, 64, 64),
        floats(2, 1, 1).abs(), longs(2, -1, 0),
    )  # fmt: skip


@row(f"{_LINEAR}.fused_recurrent_linear_replayssm")
def replayed_states_of_a_delta_net(m: Any) -> None:
    m.fused_recurrent_linear_replayssm_decode(
        halves(3, 2 * 2 * 32 + 4 * 32), halves(3, 4), halves(3, 4), floats(4), floats(4), 0.25,
        floats(4, 4, 32, 32), halves(4, 4, 16, 32), halves(4, 2, 16, 32), decays(4, 4, 16),
        halves(3, 1, 4, 32), ints(2, 1, 0), ints(3, 0, 15), use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@row(f"{_LINEAR}.seg_la")
def segmented_linear_attention(m: Any) -> None:
    _seg_la(m, 1, 3)
    _seg_la(m, 70, 2)


def _seg_la(m: Any, most: int, rows: int) -> None:
    lens = [most, 4, 1][:rows] if most > 1 else [1] * rows
    meta = m.SegLaMeta(
        batch_size=rows, max_q_length=most, q_offsets=starts(*lens), s_offsets=ints(2, 0, 1)[:rows],
        q_lengths=ints(*lens), s_scales=torch.ones(rows), mask=None,
    )  # fmt: skip
    tokens = sum(lens)
    m.seg_la_fwd(
        halves(tokens, 2, 128), halves(tokens, 2, 128, scale=0.1), halves(tokens, 2, 128),
        floats(4, 2, 128, 128), floats(2).abs(), meta,
    )  # fmt: skip


@row(f"{_LINEAR}.fused_sigmoid_gating_recurrent", unequal="arithmetic on bfloat16")
def gates_and_delta_rule_as_on_blackwell(m: Any) -> None:
    q, k, v = (each.bfloat16() for each in qkv(3, 2, 4))
    m.fused_sigmoid_gating_delta_rule_update(
        floats(4), halves(3, 4 * 16).bfloat16(), floats(4 * 16), 1.0, 20.0, q, k, v,
        halves(3, 4).bfloat16(),
        floats(4, 4, 16, 16).bfloat16(), ints(2, -1, 0), use_qk_l2norm_in_kernel=True,
        cu_seqlens=starts(1, 1, 1, dtype=LONG), is_kda=True, match_cutedsl_decode=True,
    )  # fmt: skip
