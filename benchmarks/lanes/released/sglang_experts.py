"""Mixtures of experts, quantisation and products of sglang."""

from __future__ import annotations

from typing import Any

import torch

from released.row import E4M3, Table, below, blank, floats, halves, ints, zeros

row = Table("sglang")
_MOE = "kernels.ops.moe"
_QUANT = "kernels.ops.quantization"
_GEMM = "kernels.ops.gemm"
_CONFIG = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32, "GROUP_SIZE_M": 1}


def _experts(
    m: Any, small: Any, a: torch.Tensor, b: torch.Tensor, kind: str, config: Any = _CONFIG,
    scales: Any = (None, None), block: Any = None, channels: bool = False, zero_points: Any = None,
) -> None:  # fmt: skip
    import triton.language as tl

    experts, tokens, top_k = b.shape[0], a.shape[0], 2
    chosen = torch.stack([torch.randperm(experts)[:top_k] for _ in range(tokens)]).int()
    padded = tokens * top_k + experts * 15
    ids, of, many = blank(padded // 16 * 16 + 16), blank(padded // 16 + 1), blank(1)
    small.moe_align_small_numel(chosen, experts, 16, ids, of, many)
    out = zeros(tokens, top_k, b.shape[1]).half()
    names = ("use_fp8_w8a8", "use_int8_w8a8", "use_int8_w8a16", "use_int4_w4a16")
    m.invoke_fused_moe_kernel(
        a, b, None, out, *scales, zero_points, floats(tokens, top_k).softmax(-1), chosen, ids, of,
        many, True, top_k, config, tl.float16, per_channel_quant=channels, block_shape=block,
        **{name: name == kind for name in names},
    )  # fmt: skip


_FUSED = (f"{_MOE}.fused_moe_triton_kernels", f"{_MOE}.moe_align_small_numel")


@row(*_FUSED)
def experts(m: Any, small: Any) -> None:
    _experts(m, small, halves(5, 64), halves(4, 32, 64, scale=0.1), "")


@row(*_FUSED)
def experts_in_int4(m: Any, small: Any) -> None:
    weights = below(250, 4, 32, 32, dtype=torch.uint8)
    scales = None, halves(4, 32, 2, scale=0.1)
    _experts(m, small, halves(5, 64), weights, "use_int4_w4a16", scales=scales, block=[0, 32])


@row(*_FUSED)
def sums_and_activations_of_experts(m: Any, small: Any) -> None:
    m.act_and_mul_triton(halves(10, 64), zeros(10, 32).half(), _CONFIG, below(4, 5, 2), None)
    m.moe_sum_reduce_triton(halves(5, 2, 64), zeros(5, 64).half(), 2.5)
    ids, weights = below(4, 5, 2), floats(5, 2)
    m.fused_append_shared_experts(ids, weights, 1, 0.5, 4)
    m.fused_append_shared_experts_with_weights(ids, weights, floats(5, 1), 1, 4)


@row(f"{_MOE}.moe_fused_mul_sum", f"{_MOE}.triton_pad_expert_counts", f"{_MOE}.fill_padded_rows")
def small_helpers_of_experts(mul_sum: Any, counts: Any, rows: Any) -> None:
    mul_sum.moe_fused_mul_sum(halves(5, 2, 64), floats(5, 2))
    counts.pad_expert_counts(ints(3, 0, 5), 8, 24)
    rows._fill_padded_rows(below(9, 4, 3), ints(2), -1)


@row(f"{_MOE}.router")
def router(m: Any) -> None:
    m.fused_moe_router_cudacore(halves(3, 64), halves(8, 64), 2, 30.0)
    m.fused_moe_router_tensorcore(halves(3, 64), halves(8, 64), 2, 30.0, 16, 16, 32)


@row(f"{_MOE}.moe_fused_gate")
def gate(m: Any) -> None:
    m.moe_fused_gate(floats(3, 16), floats(16), 4, num_expert_group=4, topk_group=2)
    m.moe_fused_gate(floats(3, 16), floats(16), 4, "sqrtsoftplus")


_EP = f"{_MOE}.ep_moe_kernels"


@row(_EP)
def tokens_are_scattered_to_experts(m: Any) -> None:
    chosen = ints(0, 1, 1, -1, 2, 0, 2, 1).view(4, 2)
    counts = ints(128, 128, 128)
    index = blank(4, 2)
    m.ep_scatter(
        floats(4, 128).to(E4M3), floats(4, 1).abs(), chosen, counts, ints(2, 3, 2), blank(3),
        zeros(384, 128).to(E4M3), zeros(384, 1), blank(384), index,
    )  # fmt: skip
    m.ep_gather(halves(384, 512), chosen, floats(4, 2), index, zeros(4, 512).half())


@row(_EP)
def tokens_are_sorted_by_expert(m: Any) -> None:
    chosen = ints(0, 1, 1, -1, 2, 0, 2, 1).view(4, 2)
    m.deepep_run_moe_deep_preprocess(chosen, 3)
    m.fused_moe_dispatch_index(chosen.clamp(min=0), 3, 8)
    m.tma_align_input_scale(floats(5, 3))


@row(_EP)
def tokens_are_laid_out_for_deepgemm(m: Any) -> None:
    chosen = ints(0, 1, 1, 0, 2, 0, 2, 1).view(4, 2)
    _, places = m.fused_moe_dispatch_index(chosen, 3, 8)
    m.fill_gateup_input_triton_kernel[(4,)](
        floats(4, 128).to(E4M3), floats(4, 1).abs(), zeros(3, 8, 128).to(E4M3), zeros(3, 8, 1),
        places, chosen, 2, 128, 1, 8, 1, 1, BLOCK_SIZE=1024,
    )  # fmt: skip


@row(_EP)
def outputs_are_put_back_in_order(m: Any) -> None:
    chosen, places = ints(0, 1, 1, 3, 2, 0, 2, 1).view(4, 2), torch.randperm(8).int()
    m.post_reorder_deepgemm(
        halves(8, 64), zeros(4, 64).half(), places, chosen, floats(4, 2), 2, 4, 64, 2.5
    )
    m.pre_reorder_for_cutlass_moe(
        halves(4, 64), zeros(8, 64).to(E4M3), places, chosen, torch.ones(1), 3, 2, 4, 64
    )


@row(_EP)
def activations_are_quantised_by_expert(m: Any) -> None:
    m.silu_and_mul_masked_post_quant_fwd(
        halves(2, 8, 512), zeros(2, 8, 256).to(E4M3), zeros(2, 8, 2), 128, ints(3, 8)
    )
    m.silu_and_mul_masked_post_per_tensor_quant_fwd(
        halves(2, 8, 512), zeros(2, 8, 256).to(E4M3), ints(3, 8), torch.ones(1)
    )


@row(_EP)
def activations_by_expert(m: Any) -> None:
    m.silu_and_mul_masked_fwd(floats(2, 8, 512).bfloat16(), zeros(2, 8, 256).bfloat16(), ints(3, 8))


@row(_EP)
def scales_of_tokens_become_one(m: Any) -> None:
    m.fp8_per_token_to_per_tensor_quant_triton(
        floats(2, 8, 256).to(E4M3), floats(2, 8, 2).abs(), ints(3, 8), torch.ones(1),
        zeros(2, 8, 256).to(E4M3),
    )  # fmt: skip


_FP8 = f"{_QUANT}.fp8_kernel"


@row(_FP8)
def groups_of_a_token_in_fp8(m: Any) -> None:
    m._per_token_group_quant_8bit_raw(halves(3, 256), 128)
    m._per_token_group_quant_8bit_raw(halves(3, 256), 128, column_major_scales=True)
    m.per_token_group_quant_mla_deep_gemm_masked_fp8(halves(2, 3, 256))


@row(_FP8)
def tensors_in_fp8(m: Any) -> None:
    m.static_quant_fp8(halves(3, 256), torch.ones(1), True)
    m.per_tensor_quant_mla_fp8(halves(2, 3, 64), zeros(1))


@row(_FP8)
def groups_back_from_fp8(m: Any) -> None:
    m.dequant_group_fp8_to_bf16(floats(3, 64).to(E4M3), floats(3, 2).abs())


@row(f"{_QUANT}.int8_kernel")
def tokens_in_int8(m: Any) -> None:
    m.per_token_quant_int8(halves(3, 200), cal_sum=True)
    m.per_token_group_quant_int8(halves(3, 256), 128)


@row(f"{_QUANT}.act_quant_triton", f"{_QUANT}.awq_triton", f"{_QUANT}.fp8_quantize")
def other_quantisation(act: Any, awq: Any, fp8: Any) -> None:
    act.act_quant(floats(3, 256), 128)
    awq.awq_dequantize_triton(below(2**31, 64, 8), halves(2, 64), below(2**31, 2, 8))
    fp8.fp8_quantize(halves(3, 256), 0.5)


@row(f"{_GEMM}.fp8_kernel")
def product_of_blocks_in_fp8(m: Any) -> None:
    m.w8a8_block_fp8_matmul_triton(
        floats(5, 256).to(E4M3), floats(128, 256).to(E4M3), floats(5, 2).abs(),
        floats(1, 2).abs(), [128, 128], torch.float16,
    )  # fmt: skip


@row(f"{_GEMM}.fp8_kernel")
def product_with_scales(m: Any) -> None:
    m.triton_scaled_mm(
        floats(5, 64).to(E4M3), floats(48, 64).to(E4M3).t(), floats(5, 1).abs(),
        floats(48, 1).abs(), torch.float16, halves(48),
    )  # fmt: skip


@row(f"{_GEMM}.int8_kernel")
def product_of_blocks_in_int8(m: Any) -> None:
    m.w8a8_block_int8_matmul(
        below(99, 5, 256, dtype=torch.int8), below(99, 128, 256, dtype=torch.int8),
        floats(5, 2).abs(), floats(1, 2).abs(), [128, 128], torch.float16,
    )  # fmt: skip


@row(*_FUSED)
def experts_in_fp8(m: Any, small: Any) -> None:
    weights, scales = floats(4, 32, 64).to(E4M3), (None, floats(4).abs())
    m.scaled_fp8_quant = lambda x, scale, **_: (x.to(E4M3), torch.ones(1))  # a compiled operator
    _experts(m, small, halves(5, 64), weights, "use_fp8_w8a8", scales=scales)


@row(*_FUSED, unequal="products of bfloat16")
def experts_in_bfloat16(m: Any, small: Any) -> None:
    weights = (floats(4, 32, 64) * 0.1).bfloat16()
    _experts(m, small, floats(5, 64).bfloat16(), weights, "")


@row(f"{_QUANT}.mxfp8_quant", f"{_QUANT}.fp4_indexer_quant", f"{_QUANT}.dsa_quant_k_cache",
     unequal="arithmetic on bfloat16")  # fmt: skip
def quantisation_of_small_blocks(mxfp8: Any, fp4: Any, dsa: Any) -> None:
    mxfp8.to_mxfp8(floats(3, 128).bfloat16())
    fp4.quantize_fp4_indexer_tensor(floats(3, 128).bfloat16())
    dsa.quantize_k_cache(floats(2, 64, 1, 576).bfloat16())
    dsa.quantize_k_cache_separate(floats(3, 512).bfloat16(), floats(3, 64).bfloat16())
