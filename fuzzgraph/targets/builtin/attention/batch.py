"""What a launch of paged attention is given: lengths, page map, masks, and frozen scalars.

Nothing is allocated or computed here. Tensors are read at their addresses at every replay, plain
numbers are those of the capture: that is what a device graph does with them.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPlan:
    """Work items of split attention: each is one chunk of the keys of one query token.

    Items of one token stand together, in the order of their chunks. Items past the last offset of
    `merge_indptr` are launched too, for the launch has a fixed size, and do nothing because their
    `valid` is 0.
    """

    item_tokens: torch.Tensor
    """int32 [items] query token of each item."""
    item_chunks: torch.Tensor
    """int32 [items] chunk of each item: keys from chunk * chunk_len onwards."""
    valid: torch.Tensor
    """uint8 [items] whether the item exists in this batch."""
    merge_indptr: torch.Tensor
    """int32 [tokens + 1] first item of each token."""
    chunk_len: int
    """Keys per item."""
    max_chunks: int
    """Most items that one token may have."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AttentionBatch:
    """One launch over B request rows and T query tokens.

    A query that is the i-th of its row stands at key index kv_len - q_len + i. It sees the keys up
    to itself, with `window` only that many besides itself; a custom mask alone decides instead
    where there is one. A query that sees nothing gives zeros.
    """

    kv_lens: torch.Tensor
    """int [B] keys of each row, those of this step included."""
    max_kv_len: int
    """Longest row the launch can serve; keys beyond it are not looked at."""
    scale: float
    """Factor of the logits, 1 / sqrt(head_dim)."""
    qo_indptr: torch.Tensor | None = None
    """int [B + 1] first query token of each row; None in decode: row i has token i alone."""
    max_q_len: int = 1
    """Most query tokens of a row that the launch can serve; further ones are not computed."""
    kv_indptr: torch.Tensor | None = None
    """int [B + 1] first entry of each row in `kv_indices`."""
    kv_indices: torch.Tensor | None = None
    """int [entries] slot of each key."""
    page_table: torch.Tensor | None = None
    """int [B, width] page of each `page_size` keys; used where `kv_indptr` is None."""
    page_size: int = 1
    custom_mask: torch.Tensor | None = None
    """uint8 [sum of q_len * kv_len], row after row, query-major: 1 where a query sees a key."""
    mask_indptr: torch.Tensor | None = None
    """int [B + 1] first entry of each row in `custom_mask`."""
    causal: bool = True
    """False in cross attention: every query sees every key of its row."""
    window: int = 0
    """Keys a query sees besides itself; 0 means all."""
    k_scale: float = 1.0
    """Stored keys times this are keys."""
    v_scale: float = 1.0
    plan: SplitPlan | None = None
    """Split of the keys over work items; None computes each token in one go."""
