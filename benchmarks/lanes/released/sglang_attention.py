"""Attention of sglang: decodes, prefills, verifies, and what merges them."""

from __future__ import annotations

from typing import Any

from released.row import Table, floats, ints, longs, slots, starts, zeros

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
