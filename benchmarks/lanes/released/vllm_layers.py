"""Experts, quantisation, LoRA and other layers of vLLM."""

from __future__ import annotations

from typing import Any

import torch

from released.row import (
    E4M3,
    Table,
    below,
    blank,
    floats,
    halves,
    ints,
    starts,
    zeros,
)

row = Table("vllm")
_LAYERS = "model_executor.layers"


_MOE = f"{_LAYERS}.fused_moe"
_SIZES = {"BLOCK_SIZE_M": 16, "BLOCK_SIZE_N": 32, "BLOCK_SIZE_K": 32}
_CONFIG = {**_SIZES, "GROUP_SIZE_M": 1, "SPLIT_K": 1}


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
        halves(3, 256), blank(3, 256, dtype=torch.int8), zeros(3, 2), 128, 128, 1e-10, -128.0,
        127.0, BLOCK=128,
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
    adapters_of = ints(-1, 0, -1, 0, 0, 1)
    meta = (adapters_of, rows_by_adapter, counts, starts(2, 3, 1, 0), ints(-1, 0, 1, 2))
    low = zeros(1, 6, 16)
    shrink._lora_shrink(
        halves(6, 64), [halves(3, 16, 64, scale=0.1)], low, *meta, ints(0), torch.tensor([3]), 0.5
    )
    expand._lora_expand(
        low, [halves(3, 48, 16)], zeros(6, 48).half(), *meta, ints(0), torch.tensor([3]),
        add_inputs=True,
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
