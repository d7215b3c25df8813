"""LoRA, norms, rotary embeddings and the like of sglang, and metadata of DeepSeek V4."""

from __future__ import annotations

from typing import Any

import torch

from released.row import (
    LONG,
    Table,
    below,
    blank,
    floats,
    halves,
    ints,
    longs,
    slots,
    starts,
    zeros,
)

row = Table("sglang")
_LORA = "kernels.ops.lora.dense"
_UTILS = "srt.lora.utils"


def _batch(utils: Any, *, permuted: bool = False) -> Any:
    lens = ints(3, 1, 2)
    return utils.LoRABatchInfo(
        use_cuda_graph=False, bs=3, num_segments=3, seg_indptr=starts(3, 1, 2),
        weight_indices=ints(1, 0, 2), lora_ranks=ints(16, 0, 8), scalings=floats(3).abs(),
        max_len=16 if permuted else 3, seg_lens=lens,
        permutation=torch.randperm(6).int() if permuted else None,
    )  # fmt: skip


@row(f"{_LORA}.sgemm_lora_a", f"{_LORA}.sgemm_lora_b", _UTILS)
def adapters(a: Any, b: Any, utils: Any) -> None:
    batch = _batch(utils)
    low = a.sgemm_lora_a_fwd(halves(6, 64), halves(3, 16, 64, scale=0.1), batch)
    b.sgemm_lora_b_fwd(low, halves(3, 48, 16), batch, zeros(6, 48).half())


@row(f"{_LORA}.qkv_lora_b", f"{_LORA}.gate_up_lora_b", _UTILS)
def adapters_of_several_outputs(qkv: Any, gate: Any, utils: Any) -> None:
    batch = _batch(utils)
    qkv.qkv_lora_b_fwd(halves(6, 48), halves(3, 64, 16), batch, ints(0, 32, 48, 64), 32)
    gate.gate_up_lora_b_fwd(halves(6, 32), halves(3, 64, 16), batch, 32)


@row(f"{_LORA}.chunked_sgmv_shrink", f"{_LORA}.chunked_sgmv_expand", _UTILS)
def adapters_in_chunks(shrink: Any, expand: Any, utils: Any) -> None:
    batch = _batch(utils, permuted=True)
    low = shrink.chunked_sgmv_lora_shrink_forward(
        halves(6, 64), halves(3, 16, 64, scale=0.1), batch, 1
    )
    expand.chunked_sgmv_lora_expand_forward(
        low, halves(3, 48, 16), batch, ints(0, 48), 48, zeros(6, 48).half()
    )


@row(f"{_LORA}.embedding_lora_a", _UTILS)
def adapters_of_embeddings(m: Any, utils: Any) -> None:
    m.embedding_lora_a_fwd(below(30, 6, dtype=LONG), halves(3, 16, 30), _batch(utils), 30)


_LAYERNORM = "kernels.ops.layernorm"


@row(f"{_LAYERNORM}.rmsnorm_fp32", f"{_LAYERNORM}.fused_rmsnorm", f"{_LAYERNORM}.gemma4_fused_ops")
def norms(fp32: Any, fused: Any, gemma: Any) -> None:
    fp32.rmsnorm_fp32(floats(3, 64), floats(64), 1e-6)
    fused.fused_dual_residual_rmsnorm(halves(3, 64), halves(3, 64), halves(64), halves(64), 1e-6)
    fused.fused_rmsnorm(halves(3, 64), halves(64), 1e-6)
    gemma.gemma_rmsnorm_residual_scalar(halves(3, 64), halves(64), halves(3, 64), torch.ones(1))
    gemma.gemma_qkv_rmsnorm(
        halves(3, 64), halves(3, 32), halves(3, 32), halves(16), halves(16), 4, 2, 16
    )


@row("kernels.ops.attention.mrope", "kernels.ops.attention.rotary_triton")
def rotary_of_images(plain: Any, fused: Any) -> None:
    plain.apply_interleaved_rope_triton(halves(3, 5, 24), [8, 8, 8])
    fused.triton_mrope_fused(
        halves(3, 2 * 32), halves(3, 32), floats(32, 32), below(32, 3, 3, dtype=LONG), [8, 4, 4],
        32, 32, False, False, True, None,
    )  # fmt: skip


@row("kernels.ops.elementwise.elementwise")
def softcaps_and_gates(m: Any) -> None:
    m.fused_sigmoid_mul(halves(3, 64), halves(3, 64))
    m.sigmoid_gate_mul_broadcast(halves(3, 64), halves(3, 1))
    m.fused_gate_sigmoid_mul(halves(3, 64), halves(64), halves(3, 64))


@row("kernels.ops.embeddings.vocab_parallel_embedding")
def embeddings_of_one_rank(m: Any) -> None:
    m.vocab_parallel_embedding(longs(5, 40, 12, 21), halves(16, 64), 10, 22, 4, 40, 40)


_DSV4 = "kernels.ops.attention.dsv4"


@row(f"{_DSV4}.metadata_kernel")
def metadata_of_compressed_attention(m: Any) -> None:
    m.init_compression_metadata(
        ints(300, 5, 128), ints(299, 4, 127), longs(7, 9, 400), slots(3, 3, first=0), 128
    )
    m.fill_all_compressed_indices(
        slots(3, 3, first=0), ints(70, 1, 32), blank(3, 128), compress_ratio=4, page_size=128
    )
    m.build_low_ratio_metadata(ints(300, 5, 128), longs(7, 9, 400), 64)


@row(f"{_DSV4}.attn_metadata_kernels")
def page_tables_of_compressed_attention(m: Any) -> None:
    causal = m.expand_prefill_causally_triton(
        req_pool_indices=longs(2, 0), seq_lens=ints(9, 5), extend_seq_lens=ints(3, 1), num_tokens=4,
        padded_num_tokens=6,
    )  # fmt: skip
    for build in (m.build_page_table_positions_triton, m.build_page_table_positions_small):
        build(
            req_to_token=slots(4, 24), req_pool_indices_repeated=causal.req_pool_indices_repeated,
            seq_lens_casual=causal.seq_lens_casual, max_seq_len=24, page_size=4, swa_window=4,
        )  # fmt: skip
    m.build_causal_swa_page_indices_triton(
        req_to_token=slots(4, 24), full_to_swa_mapping=slots(100, first=0),
        req_pool_indices_repeated=causal.req_pool_indices_repeated,
        seq_lens_casual=causal.seq_lens_casual, swa_window=4, page_index_aligned_size=64,
    )  # fmt: skip


@row(f"{_DSV4}.rope")
def rotary_of_compressed_attention(m: Any) -> None:
    angles = torch.polar(torch.ones(32, 8), floats(32, 8))
    for batched in (False, True):
        m.set_batched_rope(batched)
        m.apply_rotary_emb_triton(halves(3, 2, 16), angles, longs(4, 0, 31))
        m.apply_rotary_emb_triton(halves(3, 16), angles, longs(4, 0, 31), inverse=True)
    m.fused_norm_rope_inplace_triton(halves(3, 64), floats(64), 1e-6, angles, longs(4, 0, 31))


@row("kernels.ops.attention.dsa.metadata")
def metadata_of_sparse_attention(m: Any) -> None:
    table, rows = slots(4, 128), longs(2, 0, 3)
    m.fused_dsa_decode_metadata(
        longs(100, 5, 64), rows, table, blank(3), blank(4), blank(3, 128), blank(3), blank(4),
        blank(3, 2), 3, 100, 64, 64,
    )  # fmt: skip
    m.fused_dsa_target_verify_metadata(
        longs(90, 5, 64), rows, table, blank(3), blank(4), blank(6, 128), blank(6), blank(6),
        blank(7), blank(6, 2), 3, 92, 64, 64, 2,
    )  # fmt: skip
