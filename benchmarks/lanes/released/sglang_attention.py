"""Attention of sglang: decodes, prefills, verifies, and what merges them."""

from __future__ import annotations

from typing import Any

from released.row import (
    LONG,
    Table,
    below,
    floats,
    halves,
    ints,
    longs,
    slots,
    starts,
    zeros,
)

row = Table("sglang")
_DECODE = "kernels.ops.attention.decode_attention"


def _decode(m: Any, heads: int, kv_heads: int, dim: int, v_dim: int, **more: Any) -> None:
    lens, batch, splits = (37, 1, 12), 3, 2
    k = floats(64, kv_heads, dim)
    v = k[..., :v_dim] if v_dim < dim else floats(64, kv_heads, v_dim + 0)
    m.decode_attention_fwd(
        floats(batch, heads, dim), k, v, zeros(batch, heads, v_dim), starts(*lens),
        slots(50, first=0), zeros(batch, heads, splits, v_dim), zeros(batch, heads, splits),
        ints(2, 1, 2), splits, 0.3, 1.0, 1.0, **more,
    )  # fmt: skip


@row(_DECODE)
def decode_of_one_head_for_each(m: Any) -> None:
    _decode(m, 2, 2, 8, 8)


@row(_DECODE)
def decode_of_grouped_heads(m: Any) -> None:
    _decode(m, 4, 2, 8, 8, logit_cap=30.0)


@row(_DECODE)
def decode_of_latent_heads(m: Any) -> None:
    _decode(m, 4, 1, 288, 256, has_mla=True, use_pdl=True)


@row("kernels.ops.attention.merge_state")
def merge_state(m: Any) -> None:
    m.merge_state_triton(floats(3, 2, 16), floats(3, 2), floats(3, 2, 16) * 2, floats(3, 2) + 1)


_EXTEND = "kernels.ops.attention.extend_attention"


def _extend(m: Any, **more: Any) -> None:
    prefix, new = (5, 0, 9), (3, 4, 2)
    tokens = sum(new)
    m.extend_attention_fwd(
        floats(tokens, 4, 16), floats(tokens, 2, 16), floats(tokens, 2, 16) * 2,
        zeros(tokens, 4, 16), floats(32, 2, 16), floats(32, 2, 16) * 2, starts(*new),
        starts(*prefix), slots(14, dtype=LONG), more.pop("custom_mask", None), True,
        more.pop("mask_indptr", None), max(new), 1.0, 1.0, **more,
    )  # fmt: skip


@row(_EXTEND)
def extend(m: Any) -> None:
    _extend(m, sliding_window_size=4)


@row(_EXTEND)
def verify_of_a_tree(m: Any) -> None:
    lens = [each * (each + past) for each, past in ((3, 5), (4, 0), (2, 9))]
    mask = below(2, sum(lens)).bool()
    _extend(m, custom_mask=mask, mask_indptr=starts(*lens))


@row(_EXTEND)
def extend_over_one_list_of_slots(m: Any) -> None:
    prefix, new = (5, 0, 9), (3, 4, 2)
    tokens, both = sum(new), [one + two for one, two in zip(prefix, new, strict=True)]
    indptr, indices, _ = m.build_unified_kv_indices(
        starts(*prefix), slots(14, dtype=LONG), starts(*new)[:-1], ints(*new),
        slots(tokens, first=20, dtype=LONG), 3,
    )  # fmt: skip
    m.extend_attention_fwd_unified(
        floats(tokens, 4, 16), zeros(tokens, 4, 16), floats(40, 2, 16), floats(40, 2, 16) * 2, 1.0,
        1.0, starts(*new), indptr, indices, ints(*prefix), max(new),
    )  # fmt: skip
    assert sum(both) == indices.numel()


@row(_EXTEND)
def dense_prefill(m: Any) -> None:
    lens = starts(3, 17)
    m.dense_prefill_attention_fwd(
        halves(20, 4, 16), halves(20, 2, 16), halves(20, 2, 16) * 2, zeros(20, 4, 16).half(),
        lens, lens, 17, lse=zeros(20, 4),
    )  # fmt: skip


@row(_EXTEND)
def windows_aligned_to_tiles(m: Any) -> None:
    m.align_window_kv_to_tiles(starts(5, 3), slots(8, dtype=LONG), ints(7, 130), 2, 16)


@row("kernels.ops.attention.prefill_attention")
def prefill_without_a_cache(m: Any) -> None:
    m.context_attention_fwd(
        floats(20, 4, 16), floats(20, 2, 16), floats(20, 2, 16) * 2, zeros(20, 4, 16),
        ints(0, 3), ints(3, 17), 17,
    )  # fmt: skip


@row("kernels.ops.attention.verify_splitkv")
def verify_in_splits(m: Any) -> None:
    m.verify_splitkv_fwd(
        halves(8, 4, 64), halves(8, 2, 64), halves(8, 2, 64) * 2, zeros(8, 4, 64).half(),
        halves(64, 2, 64), halves(64, 2, 64) * 2, starts(4, 4), starts(37, 12),
        slots(49, dtype=LONG), None, True, None, 4, 1.0, 1.0, 0.125,
    )  # fmt: skip


@row("kernels.ops.attention.dsa.triton_sparse_mla", unequal="products of bfloat16")
def sparse_latent_attention(m: Any) -> None:
    chosen = below(40, 3, 128) - 1
    m.triton_sparse_mla_fwd(
        floats(3, 16, 512).bfloat16(), floats(3, 16, 64).bfloat16(), floats(64, 1, 576).bfloat16(),
        chosen.view(3, 1, 128), 0.1,
    )  # fmt: skip


@row("kernels.ops.attention.minimax_sparse.decode.flash_with_topk_idx")
def decode_that_scores_blocks(m: Any) -> None:
    m.flash_decode_with_topk_idx(
        halves(1, 4, 64), None, halves(600, 1, 64), halves(600, 1, 64) * 2,
        slots(4, 128, first=0), ints(100), 128, longs(2), 16, 64, 1, 1,
    )  # fmt: skip


@row(_DECODE, unequal="arithmetic on bfloat16")
def decode_in_bfloat16(m: Any) -> None:
    k, v = floats(64, 2, 16).bfloat16(), floats(64, 2, 16).bfloat16() * 2
    for heads in (2, 4):
        m.decode_attention_fwd(
            floats(3, heads, 16).bfloat16(), k, v, zeros(3, heads, 16).bfloat16(),
            starts(37, 1, 12), slots(50, first=0), zeros(3, heads, 2, 16), zeros(3, heads, 2),
            ints(2, 1, 2), 2, 0.3, 1.0, 1.0,
        )  # fmt: skip


@row(_EXTEND, unequal="arithmetic on bfloat16")
def extend_in_bfloat16(m: Any) -> None:
    m.extend_attention_fwd(
        floats(9, 4, 16).bfloat16(), floats(9, 2, 16).bfloat16(), floats(9, 2, 16).bfloat16(),
        zeros(9, 4, 16).bfloat16(), floats(32, 2, 16).bfloat16(), floats(32, 2, 16).bfloat16(),
        starts(3, 4, 2), starts(5, 0, 9), slots(14, dtype=LONG), None, True, None, 4, 1.0, 1.0,
    )  # fmt: skip
