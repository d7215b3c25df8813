"""Lists of slots, page tables and other metadata of sglang."""

from __future__ import annotations

from typing import Any

from released.row import (
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
_DSA = "kernels.ops.attention.dsa"


@row("kernels.ops.attention.kv_indices")
def kv_indices(m: Any) -> None:
    table, rows, lens = slots(4, 24), ints(2, 0, 3), ints(17, 1, 24)
    m.create_flashinfer_kv_indices_triton[(3,)](
        table, rows, lens, starts(17, 1, 24), None, blank(42), 24
    )
    m.create_flashinfer_kv_indices_triton[(3, 2)](
        table, rows, lens, starts(17, 1, 24), ints(0, 0, 0), blank(42), 24,
        TOKEN_BLOCK_PARALLEL=True,
    )  # fmt: skip


@row("kernels.ops.attention.kv_indices")
def kv_indices_of_chunks(m: Any) -> None:
    m.create_chunked_prefix_cache_kv_indices[(3,)](
        slots(4, 24), ints(2, 0, 3), ints(4, 0, 8), ints(8, 1, 8), starts(8, 1, 8),
        blank(17), 24,
    )  # fmt: skip


@row("kernels.ops.attention.kv_indices")
def page_table_of_flashmla(m: Any) -> None:
    pages = blank(3, 2) - 1
    blocks = m.get_num_kv_index_blocks_flashmla(2, 64)
    m.create_flashmla_kv_indices_triton[(3, blocks)](
        slots(4, 128), ints(2, 0, 3), ints(128, 1, 65), None, pages, 128, 2
    )


@row("kernels.ops.attention.metadata")
def kv_splits(m: Any) -> None:
    m.get_num_kv_splits_triton[(1,)](
        blank(4), ints(5, 600, 1, 37), 4, 1, 8, 2, 8, 132, MAX_NUM_SEQ=4
    )


@row("kernels.ops.attention.metadata")
def decode_metadata(m: Any) -> None:
    for skip in (False, True):
        m.normal_decode_set_metadata(
            blank(3), blank(4),
            blank(3, 6), slots(4, 24), ints(2, 0, 3), 6, ints(17, 1, 24), 0, 4,
            skip_page_table=skip,
        )  # fmt: skip


@row("kernels.ops.attention.metadata")
def draft_extend_metadata(m: Any) -> None:
    m.draft_extend_set_metadata(
        blank(3), blank(4), blank(4),
        blank(3, 6), slots(4, 24), ints(2, 0, 3), ints(17, 2, 24),
        ints(2, 1, 3), 4,
    )  # fmt: skip


@row("kernels.ops.attention.metadata")
def page_table_of_a_window(m: Any) -> None:
    m.prepare_swa_spec_page_table_triton(
        blank(4, 9), slots(2, 6), slots(4, 3), ints(6, 4), ints(1, 2, 1, 2), 2
    )


@row("kernels.ops.attention.metadata")
def lengths_of_top_k(m: Any) -> None:
    indices = slots(3, 512)
    indices[1, 30:] = -1
    m.q8kv8_topk_length_from_indices(indices)


@row("kernels.ops.attention.trtllm_mha_page_table")
def page_table_of_trtllm(m: Any) -> None:
    m.build_trtllm_mha_page_table(slots(4, 24), ints(2, 0, 3), ints(17, 1, 24), blank(3, 6), 4)


@row("kernels.ops.attention.pad")
def padded_sequences(m: Any) -> None:
    m.pad_sequence_with_mask(floats(9, 8), ints(0, 3, 7), ints(3, 4, 2), 5)


@row("kernels.ops.attention.pad")
def padded_queries(m: Any) -> None:
    lens, cu = ints(2, 3), starts(2, 3)
    m.pad_draft_extend_query(floats(5, 2, 8), zeros(2, 3, 2, 8), lens, cu)
    m.unpad_draft_extend_output(floats(2, 3, 2, 8), cu, lens, 5)
    m.seqlens_expand_triton(lens, ints(7, 9), 5, 3)


@row("kernels.ops.attention.position")
def positions(m: Any) -> None:
    m.compute_position_triton(ints(4, 0, 7), ints(3, 1, 2), 6)


@row(f"{_DSA}.transform_index")
def slots_of_top_k(m: Any) -> None:
    table = slots(3, 64)
    m.transform_index_page_table_decode(table, below(64, 3, 2048))
    m.transform_index_page_table_decode(table, below(64, 3, 512))
    m.transform_index_page_table_prefill(table, below(64, 6, 512), [3, 1, 2])


@row(f"{_DSA}.transform_index")
def slots_of_one_rank(m: Any) -> None:
    m.transform_index_page_table_dcp(slots(3, 64), 2, 1)
    m.prepare_trtllm_nope_sparse_metadata(slots(3, 64))


@row(f"{_DSA}.triton_kernel")
def slots_of_valid_top_k(m: Any) -> None:
    chosen = below(64, 3, 128) - 1
    found = (chosen >= 0).sum(1).tolist()
    m.get_valid_kv_indices(chosen, starts(*found), blank(sum(found)), 3)


@row("kernels.ops.attention.fused_qk_rmsnorm_rope_gate")
def norm_and_rope_of_q_and_k(m: Any) -> None:
    m.fused_qk_gemma_rmsnorm_rope_gate(
        halves(3, 2 * 2 * 16), halves(3, 16), halves(16), halves(16) + 1, floats(32, 8),
        longs(4, 0, 31), 1e-6, 2, 1, 16, 8,
    )  # fmt: skip
