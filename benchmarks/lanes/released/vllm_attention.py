"""Attention of vLLM, writers of its KV caches, and what finds their pages."""

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
    pages_of,
    slots,
    starts,
    zeros,
)

row = Table("vllm")
_OPS = "v1.attention.ops"
_MLA = "v1.attention.backends.mla"


def _unified(m: Any, queries: tuple[int, ...], lens: tuple[int, ...], **more: Any) -> None:
    tokens = sum(queries)
    m.unified_attention(
        floats(tokens, 4, 32), floats(20, 16, 2, 32), floats(20, 16, 2, 32) * 2,
        zeros(tokens, 4, 32), starts(*queries), max(queries), ints(*lens), max(lens), 0.2, True,
        more.pop("window_size", (-1, -1)), pages_of(3, 6), 0.0, None, torch.ones(1), torch.ones(1),
        **more,
    )  # fmt: skip


@row(f"{_OPS}.triton_unified_attention")
def unified_attention(m: Any) -> None:
    _unified(m, (5, 1, 3), (70, 1, 40))
    _unified(m, (5, 1, 3), (70, 1, 40), window_size=(7, 0), sinks=floats(4))


@row(f"{_OPS}.triton_unified_attention")
def unified_attention_in_segments(m: Any) -> None:
    _unified(
        m, (1, 1, 1), (70, 1, 40), seq_threshold_3D=8, num_par_softmax_segments=4,
        softmax_segm_output=zeros(8, 4, 4, 32), softmax_segm_max=zeros(8, 4, 4),
        softmax_segm_expsum=zeros(8, 4, 4),
    )  # fmt: skip


_DECODE = f"{_OPS}.triton_decode_attention"


def _decode(m: Any, heads: int, kv_heads: int, dim: int, v_dim: int, **more: Any) -> None:
    k = floats(8 * 16, kv_heads, dim).view(8, 16, kv_heads, dim)
    v = k[..., :v_dim] if v_dim < dim else floats(8, 16, kv_heads, v_dim)
    m.decode_attention_fwd(
        floats(3, heads, dim), k, v, zeros(3, heads, v_dim), zeros(3, heads), pages_of(3, 2) % 8,
        ints(32, 1, 17), zeros(3, heads, 4, v_dim + 1), 4, 0.2, 16, **more,
    )  # fmt: skip


@row(_DECODE)
def decode_of_one_head_for_each(m: Any) -> None:
    _decode(m, 2, 2, 16, 16)


@row(_DECODE)
def decode_of_latent_heads(m: Any) -> None:
    _decode(m, 4, 1, 288, 256, is_mla=True)


@row(f"{_OPS}.triton_merge_attn_states")
def merge_of_two_parts(m: Any) -> None:
    m.merge_attn_states(
        zeros(3, 2, 16), floats(3, 2, 16), floats(2, 3), floats(3, 2, 16) * 2, floats(2, 3) + 1,
        zeros(2, 3),
    )  # fmt: skip


@row(f"{_OPS}.triton_prefill_attention")
def prefill_without_a_cache(m: Any) -> None:
    m.context_attention_fwd(
        floats(20, 4, 16), floats(20, 2, 16), floats(20, 2, 16) * 2, zeros(20, 4, 16), ints(0, 3),
        ints(3, 17), 17,
    )  # fmt: skip


@row(f"{_OPS}.prefix_prefill")
def prefill_over_pages(m: Any) -> None:
    k, v = halves(8, 2, 4, 16, 8), halves(8, 2, 32, 16)
    lens, queries = ints(30, 20), starts(5, 1)
    one = torch.ones(1)
    tokens = halves(6, 4, 32), halves(6, 2, 32), halves(6, 2, 32) * 2, zeros(6, 4, 32).half()
    m.context_attention_fwd(*tokens, "auto", k, v, pages_of(2, 3), queries, lens, 30, 5, one, one)


@row(f"{_OPS}.triton_reshape_and_cache_flash")
def kv_is_stored_in_pages(m: Any) -> None:
    one = torch.ones(1)
    m.triton_reshape_and_cache_flash(
        halves(3, 2, 16), halves(3, 2, 16) * 2, halves(4, 4, 2, 16), halves(4, 4, 2, 16) * 2,
        longs(5, -1, 14), "auto", one, one,
    )  # fmt: skip
    m.triton_reshape_and_cache_flash_diffkv(
        halves(3, 2, 16), halves(3, 2, 8), halves(4, 4, 2, 24), longs(5, -1, 14), "auto", one, one
    )


@row(f"{_OPS}.triton_reshape_and_cache_flash", "v1.kv_cache_interface")
def kv_is_stored_with_a_scale_for_each_head(m: Any, interface: Any) -> None:
    m.triton_reshape_and_cache_flash_per_token_head_quant(
        halves(3, 2, 16), halves(3, 2, 16) * 2, blank(4, 4, 2, 16, dtype=torch.int8),
        blank(4, 4, 2, 16, dtype=torch.int8), zeros(4, 4, 2), zeros(4, 4, 2), longs(5, -1, 14),
        interface.KVQuantMode.INT8_PER_TOKEN_HEAD,
    )  # fmt: skip


@row(f"{_OPS}.common", f"{_OPS}.metadata", f"{_OPS}.dcp")
def sequences_and_ranks(common: Any, metadata: Any, dcp: Any) -> None:
    lens = ints(3, 4, 2)
    packed = common.pack_seq_triton(halves(9, 16), lens)
    common.unpack_seq_triton(packed, lens)
    metadata.compute_token_to_req_indices(starts(3, 4, 2), blank(12), 9, 12)
    dcp.CorrectAttnCPOutKernel.kernel[(3, 2, 1)](
        floats(3, 2, 16), floats(3, 2, 16), floats(2, 3, 2), zeros(3, 2), 32, 16, 1, 6, 2, 1, 1,
        HEAD_DIM=16, N_ROUNDED=2, IS_BASE_E=True,
    )  # fmt: skip
    dcp._dcp_a2a_pack_send(halves(3, 4, 16), floats(3, 4), zeros(2, 3, 2, 18).half(), 2, 2, 16, 2)


@row(f"{_MLA}.sparse_utils")
def slots_of_top_k(m: Any) -> None:
    chosen = below(128, 3, 256) - 1
    for counts in (False, True):
        m.triton_convert_req_index_to_global_index(
            ints(0, 1, 1), pages_of(2, 2), chosen, 64, NUM_TOPK_TOKENS=256,
            return_valid_counts=counts,
        )  # fmt: skip
    m.triton_filter_and_convert_dcp_index(
        ints(0, 1, 1), pages_of(2, 2), chosen, 2, 1, BLOCK_SIZE=64, NUM_TOPK_TOKENS=256
    )
    m.prepare_sparse_mla_safe_lengths(chosen, ints(200, 0, 256))


@row(f"{_MLA}.indexer")
def slots_of_the_tail_of_a_pool(m: Any) -> None:
    m.compute_kpool_tail_slot_mapping(
        slots(6, dtype=LONG), pages_of(2, 3), starts(4, 2), longs(0, 1, 2, 3, 8, 9), 6, 2, 4
    )


@row("v1.spec_decode.utils")
def inputs_of_eagle(m: Any) -> None:
    m.eagle_step_update_slot_mapping_and_metadata(
        longs(5, 9, 63), pages_of(3, 4), ints(6, 10, 64), 16, 64, zeros(4, dtype=LONG),
        zeros(4, dtype=LONG), 4,
    )  # fmt: skip
    m.eagle_prepare_inputs_padded_kernel[(2,)](
        ints(3, 5), ints(2, 1), starts(4, 3), blank(2), blank(2), 2
    )
    m.eagle_prepare_next_token_padded_kernel[(2,)](
        ints(5, 9, -1, 7, -1, -1).view(2, 3), below(2, 2).bool(), ints(3, 4), blank(2), blank(2),
        99, 3, 2, 3, BLOCK_SIZE_TOKENS=4,
    )  # fmt: skip


@row("v1.sample.rejection_sampler")
def drafts_are_rejected(m: Any) -> None:
    counts, tokens = ints(3, 5), below(50, 5)
    target, draft = floats(5, 50).softmax(-1), (floats(5, 50) * 2).softmax(-1)
    m.rejection_greedy_sample_kernel[(2,)](
        blank(2, 4) - 1, counts, tokens, below(50, 5, dtype=LONG), below(50, 2, 1), None, 3, None,
        None, SYNTHETIC_MODE=False,
    )  # fmt: skip
    m.rejection_random_sample_kernel[(2,)](
        blank(2, 4) - 1, counts, tokens, draft, target, below(50, 2, 1), below(50, 5),
        floats(5).sigmoid().double(), below(1, 2).bool(), 3, 50, None, NO_DRAFT_PROBS=False,
        SYNTHETIC_MODE=False,
    )  # fmt: skip
    m.expand_batch_to_tokens(floats(2), counts, 5)
    m.sample_recovered_tokens_kernel[(2, 3)](
        blank(5), counts, tokens, draft, target, floats(2, 50).abs() + 0.1, 50, BLOCK_SIZE=64,
        NO_DRAFT_PROBS=False, USE_FP64_GUMBEL=False,
    )  # fmt: skip


@row("v1.sample.ops.topk_topp_triton")
def top_k_and_top_p(m: Any) -> None:
    m.apply_top_k_top_p_triton(floats(3, 900), ints(20, 5, 900), floats(3).sigmoid())
    m.apply_top_k_top_p_triton(floats(3, 900), None, floats(3).sigmoid())


@row("v1.sample.ops.topk_topp_triton")
def top_p_in_splits(m: Any) -> None:
    m._apply_topp_split(floats(2, 9000), ints(500, 9000), floats(2).sigmoid(), float("-inf"), 132)


@row(f"{_OPS}.triton_unified_attention", unequal="arithmetic on bfloat16")
def unified_attention_in_bfloat16(m: Any) -> None:
    queries, lens = (5, 1, 3), (70, 1, 40)
    m.unified_attention(
        floats(9, 4, 32).bfloat16(), floats(20, 16, 2, 32).bfloat16(),
        floats(20, 16, 2, 32).bfloat16(), zeros(9, 4, 32).bfloat16(), starts(*queries), 5,
        ints(*lens), 70, 0.2, True, (-1, -1), pages_of(3, 6), 0.0, None, torch.ones(1),
        torch.ones(1),
    )  # fmt: skip


@row("v1.worker.gpu.spec_decode.ngram.speculator")
def drafts_of_ngrams(m: Any) -> None:
    tokens, rows, lens = below(5, 4, 64), ints(2, 0, 3), ints(30, 9, 50, 64)
    sampled, scratch = ints(1, 1, 1), zeros(4, 8, dtype=LONG)
    m._ngram_scan_kernel[(3, 4)](
        tokens, 64, rows, lens, sampled, scratch, scratch.stride(0), 64, 2, 4, 4, 16
    )
    m._ngram_finalize_kernel[(3,)](
        tokens, 64, rows, lens, sampled, longs(1, 2, 3, 4), scratch, scratch.stride(0), blank(4, 3),
        64, 4, 3, 4, 4,
    )  # fmt: skip
