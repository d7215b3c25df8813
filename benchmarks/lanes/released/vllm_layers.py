"""Recurrent layers, experts, quantisation and LoRA of vLLM."""

from __future__ import annotations

from typing import Any

import torch
from released.row import (
    E4M3,
    LONG,
    Table,
    below,
    blank,
    decays,
    floats,
    halves,
    ints,
    longs,
    starts,
    zeros,
)

row = Table("vllm")
_FLA = "third_party.flash_linear_attention.ops"
_MAMBA = "model_executor.layers.mamba.ops"
_LAYERS = "model_executor.layers"


def _qkv(tokens: int, heads: int, v_heads: int, dim: int = 16) -> tuple[torch.Tensor, ...]:
    return (
        halves(1, tokens, heads, dim),
        halves(1, tokens, heads, dim, scale=0.5),
        halves(1, tokens, v_heads, dim),
    )


@row(f"{_FLA}.chunk")
def gated_delta_net_in_chunks(m: Any) -> None:
    q, k, v = _qkv(70, 2, 4)
    m.chunk_gated_delta_rule(
        q, k, v, decays(1, 70, 4), halves(1, 70, 4).sigmoid(), initial_state=zeros(2, 4, 16, 16),
        output_final_state=True, cu_seqlens=starts(66, 4, dtype=LONG),
        use_qk_l2norm_in_kernel=True,
    )  # fmt: skip


@row(f"{_FLA}.fused_recurrent")
def gated_delta_net_token_by_token(m: Any) -> None:
    q, k, v = _qkv(7, 2, 4)
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
    q, k, v = _qkv(3, 2, 4)
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
    q, k, v = _qkv(70, 2, 2, 32)
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


_MOE = f"{_LAYERS}.fused_moe"
_CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1, "SPLIT_K": 1}


@row(f"{_MOE}.fused_moe")
def experts(m: Any) -> None:
    import triton.language as tl

    tokens, top_k = 5, 2
    ids = torch.full((96,), tokens * top_k, dtype=torch.int32)
    ids[:3], ids[16:20], ids[32:35] = ints(0, 3, 6), ints(1, 2, 4, 8), ints(5, 7, 9)
    common = (floats(5, 2).softmax(-1), ids, ints(0, 1, 2, -1, -1, -1), ints(48), True, 2, _CONFIG)
    m.invoke_fused_moe_triton_kernel(
        halves(5, 64), halves(4, 32, 64, scale=0.1), zeros(5, 2, 32).half(), None, None, *common,
        tl.float16, False, False, False, False, False,
    )  # fmt: skip
    m.invoke_fused_moe_wna16_triton_kernel(
        halves(5, 64), below(250, 4, 32, 32, dtype=torch.uint8), zeros(5, 2, 32).half(),
        halves(4, 32, 2, scale=0.1), None, *common, tl.float16, False, True, [0, 32],
    )  # fmt: skip


@row(f"{_MOE}.utils", f"{_MOE}.moe_fused_mul_sum")
def helpers_of_experts(m: Any, mul_sum: Any) -> None:
    chosen = ints(0, 1, 1, -1, 2, 0, 2, 1).view(4, 2)
    m.count_expert_num_tokens(chosen, 3, None)
    m.remap_topk_to_local(chosen.clamp(min=0), ints(2, -1, 0))
    m._swiglu_limit_pad_aware(zeros(4, 64).half(), halves(4, 128), chosen, 7.0)
    mul_sum.moe_fused_mul_sum(halves(5, 2, 64), floats(5, 2))


@row(f"{_MOE}.deep_gemm_utils")
def tokens_are_scattered_to_experts(m: Any) -> None:
    chosen, index = ints(0, 1, 1, -1, 2, 0, 2, 1).view(4, 2), blank(4, 2)
    m.ep_scatter(
        floats(4, 128).to(E4M3), floats(4, 1).abs(), chosen, ints(2, 3, 2), None, blank(3),
        zeros(384, 128).to(E4M3), zeros(384, 1), blank(384), index,
    )  # fmt: skip
    m.ep_gather(halves(384, 512), chosen, floats(4, 2), index, None, zeros(4, 512).half())


@row(f"{_MOE}.experts.batched_deep_gemm_moe", f"{_MOE}.experts.fused_batched_moe")
def batches_of_experts(quant: Any, batched: Any) -> None:
    import triton.language as tl

    quant._silu_mul_fp8_quant_deep_gemm[(2 * 2,)](
        halves(2, 8, 512), zeros(2, 8, 256).to(E4M3), zeros(2, 2, 8), ints(3, 8), 256, 128,
        8 * 512, 512, 1, 8 * 256, 256, 1, 16, 1, 8, 1, 1e-10, -448.0, 448.0, False, BLOCK=128,
        NUM_STAGES=4,
    )  # fmt: skip
    batched.invoke_moe_batched_triton_kernel(
        halves(2, 8, 64), halves(2, 32, 64), zeros(2, 8, 32).half(), ints(3, 8), tl.float16, None,
        None, None, False, False, False, _CONFIG, False,
    )  # fmt: skip


_QUANT = f"{_LAYERS}.quantization"


@row(f"{_QUANT}.utils.fp8_utils")
def groups_in_fp8(m: Any) -> None:
    m._per_token_group_quant_fp8[(6,)](
        halves(3, 256), zeros(3, 256).to(E4M3), zeros(3, 2), 128, 256, 256, 1e-10, -448.0, 448.0,
        False, BLOCK=128,
    )  # fmt: skip
    m.silu_mul_per_token_group_quant_fp8_colmajor(halves(128, 512))
    m.w8a8_triton_block_scaled_mm(
        floats(5, 256).to(E4M3), floats(128, 256).to(E4M3), floats(5, 2).abs(),
        floats(1, 2).abs(), [128, 128], torch.float16,
    )  # fmt: skip


@row(f"{_QUANT}.utils.int8_utils")
def tokens_in_int8(m: Any) -> None:
    m.per_token_quant_int8(halves(3, 200))
    m._per_token_group_quant_int8[(6,)](
        halves(3, 256), blank(3, 256, dtype=torch.int8), zeros(3, 2), 128, 128, 1e-10, -128.0, 127.0,
        BLOCK=128,
    )  # fmt: skip


@row(f"{_QUANT}.awq_triton", f"{_QUANT}.compressed_tensors.triton_scaled_mm")
def other_quantisation(awq: Any, scaled: Any) -> None:
    awq.awq_dequantize_triton(below(2**31, 64, 8), halves(2, 64), below(2**31, 2, 8))
    awq.awq_gemm_triton(halves(3, 64), below(2**31, 64, 8), halves(2, 64), below(2**31, 2, 8), 1)
    scaled.triton_scaled_mm(
        floats(5, 64).to(E4M3), floats(48, 64).to(E4M3).t(), floats(5, 1).abs(),
        floats(48, 1).abs(), torch.float16, halves(48),
    )  # fmt: skip


@row(f"{_LAYERS}.activation", f"{_LAYERS}.rotary_embedding.mrope")
def activations_and_rotary(activation: Any, mrope: Any) -> None:
    activation.swiglustep_and_mul_triton(zeros(3, 64).half(), halves(3, 128))
    mrope.triton_mrope(
        halves(3, 2 * 32), halves(3, 32), floats(3, 3, 16), floats(3, 3, 16), [8, 4, 4], 32, 32,
        False, True,
    )  # fmt: skip


@row("model_executor.determinism.batch_invariant")
def layers_that_ignore_the_batch(m: Any) -> None:
    m._BLOCK_SIZES_RESOLVED, m._NUM_SMS = True, 4  # else it asks a compiled operator
    m.matmul_persistent(halves(5, 64), halves(64, 48), halves(48))
    m.log_softmax(halves(3, 900))
    m.mean_dim(halves(3, 70), 1)
    m.bmm_batch_invariant(halves(2, 5, 32), halves(2, 32, 16))
    m.rms_norm_batch_invariant(halves(3, 64), halves(64))


_LORA = "lora.ops.triton_ops"


@row(f"{_LORA}.lora_shrink_op", f"{_LORA}.lora_expand_op")
def adapters(shrink: Any, expand: Any) -> None:
    rows_by_adapter, counts = ints(0, 2, 4, 1, 3, 5), ints(2, 3, 1, 0)
    meta = (ints(-1, 0, -1, 0, 0, 1), rows_by_adapter, counts, starts(2, 3, 1, 0), ints(-1, 0, 1, 2))
    low = zeros(1, 6, 16)
    shrink._lora_shrink(
        halves(6, 64), [halves(3, 16, 64, scale=0.1)], low, *meta, ints(0), torch.tensor([3]), 0.5
    )
    expand._lora_expand(
        low, [halves(3, 48, 16)], zeros(6, 48).half(), *meta, ints(0), torch.tensor([3]),
        add_inputs=True,
    )  # fmt: skip


@row(f"{_MAMBA}.mamba_ssm")
def mamba_decode_that_rounds_at_random(m: Any) -> None:
    m.selective_state_update(
        halves(4, 4, 16, 16), halves(3, 4, 16), halves(3, 4, 1).expand(3, 4, 16),
        -floats(4, 1, 1).abs().expand(4, 16, 16), halves(3, 2, 16), halves(3, 2, 16),
        floats(4, 1).expand(4, 16), floats(4, 1).expand(4, 16), dt_softplus=True,
        state_batch_indices=ints(2, 0, 1), out=zeros(3, 4, 16).half(),
        enable_stochastic_rounding=True, cache_philox_rounds=4,
    )  # fmt: skip


@row(f"{_MOE}.fused_moe", unequal="products of bfloat16")
def experts_in_bfloat16(m: Any) -> None:
    import triton.language as tl

    ids = torch.full((96,), 10, dtype=torch.int32)
    ids[:3], ids[16:20], ids[32:35] = ints(0, 3, 6), ints(1, 2, 4, 8), ints(5, 7, 9)
    m.invoke_fused_moe_triton_kernel(
        floats(5, 64).bfloat16(), floats(4, 32, 64).bfloat16(), zeros(5, 2, 32).bfloat16(), None,
        None, floats(5, 2).softmax(-1), ids, ints(0, 1, 2, -1, -1, -1), ints(48), True, 2, _CONFIG,
        tl.bfloat16, False, False, False, False, False,
    )  # fmt: skip
