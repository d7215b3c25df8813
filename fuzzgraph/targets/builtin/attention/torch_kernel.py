"""Paged attention as torch operations that behave like a device kernel.

Shapes depend on frozen numbers only, nothing is read back to the host, loads are masked, and
memory is addressed by base and offset without bounds (see `addressing`). Arithmetic is float32.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.targets.builtin.attention.batch import AttentionBatch, SplitPlan
from fuzzgraph.targets.builtin.raw_addressing import Flat, Rows

_UNSEEN = -1.0e30
"""Logit of a key that is not seen. Finite: a query that sees nothing then averages values that
its masked loads made zero, instead of giving NaN."""


@dataclass(slots=True)
class _Lanes:
    """What is computed side by side: one lane per query token, or per work item of a plan."""

    rows: torch.Tensor | None
    """[lanes] request row; None where lane i is row i."""
    columns: torch.Tensor
    """[1 or lanes, width] key indices."""
    hidden: torch.Tensor
    """[lanes, width] whether the lane does not see the key."""


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    batch: AttentionBatch,
) -> None:
    """Write softmax(q k^T) v of every query token to `out`; tokens of no row stay as they are.

    Args:
        q: [T, Hq, D], any stride.
        k: [slots, Hkv, D] in storage dtype, contiguous, Hq a multiple of Hkv.
        v: [slots, Hkv, Dv], or the first columns of k.
        out: [T, Hq, Dv], dtype of q.
    """
    tokens = _Tokens(batch, len(q))
    if batch.plan is None:
        columns = torch.arange(batch.max_kv_len, device=q.device)[None]
        lanes = _Lanes(tokens.rows, columns, tokens.hidden(batch, columns, None))
        weights, values, _ = _attend(q, k, v, lanes, batch)
        result = torch.matmul(torch.softmax(weights, dim=-1), values)
    else:
        result = _split(q, k, v, tokens, batch, batch.plan)
    result = result.reshape(out.shape)
    if tokens.valid is None:
        out.copy_(result)
    else:
        out.copy_(torch.where(tokens.valid[:, None, None], result.to(out.dtype), out))


class _Tokens:
    """Which row each query token belongs to, and where it stands among the row's keys."""

    def __init__(self, batch: AttentionBatch, count: int) -> None:
        self.rows: torch.Tensor | None = None
        self.valid: torch.Tensor | None = None
        self.kv_lens = batch.kv_lens
        self.index = self.first = batch.kv_lens
        indptr = batch.qo_indptr
        if indptr is None:
            self.last = batch.kv_lens - 1 if batch.window else None
            return
        number = torch.arange(count, device=indptr.device, dtype=indptr.dtype)
        found = torch.searchsorted(indptr, number, right=True, out_int32=True) - 1
        self.rows = found.clamp(0, len(indptr) - 2)
        ends = indptr[1:].index_select(0, self.rows)
        self.kv_lens = batch.kv_lens.index_select(0, self.rows)
        self.last = self.kv_lens - ends + number
        self.index = number - indptr.index_select(0, self.rows)
        self.valid = (number < ends) & (self.index >= 0) & (self.index < batch.max_q_len)

    def hidden(
        self, batch: AttentionBatch, columns: torch.Tensor, items: torch.Tensor | None
    ) -> torch.Tensor:
        """[lanes, width] where a lane does not see a key; `items` are the lanes' tokens."""
        kv_lens = self._of(self.kv_lens, items)
        hidden = columns >= kv_lens[:, None]
        if self.valid is not None:
            hidden = hidden | ~self._of(self.valid, items)[:, None]
        if batch.custom_mask is not None and batch.mask_indptr is not None:
            return hidden | self._masked(batch, columns, hidden, items)
        if not batch.causal or self.last is None:
            return hidden
        last = self._of(self.last, items)[:, None]
        if self.rows is not None:
            hidden = hidden | (columns > last)
        if batch.window:
            hidden = hidden | (columns < last - batch.window)
        return hidden

    def _masked(
        self,
        batch: AttentionBatch,
        columns: torch.Tensor,
        hidden: torch.Tensor,
        items: torch.Tensor | None,
    ) -> torch.Tensor:
        assert batch.custom_mask is not None and batch.mask_indptr is not None
        mask = Flat(batch.custom_mask)
        first = batch.mask_indptr
        first = first[:-1] if self.rows is None else first.index_select(0, self.rows)
        if self.rows is not None:
            first = first + self.index * self.kv_lens
        address = (self._of(first, items)[:, None] + columns).masked_fill(hidden, 0).add(mask.base)
        seen = mask.view.index_select(0, address.reshape(-1))
        return (seen == 0).view(hidden.shape)

    @staticmethod
    def _of(values: torch.Tensor, items: torch.Tensor | None) -> torch.Tensor:
        return values if items is None else Rows(values).gather(items)


def _slots(lanes: _Lanes, batch: AttentionBatch) -> torch.Tensor:
    """[lanes * width] slot of each key a lane sees, slot 0 elsewhere: a masked load."""
    if batch.kv_indptr is not None and batch.kv_indices is not None:
        entries = Flat(batch.kv_indices)
        first = batch.kv_indptr
        first = first[:-1] if lanes.rows is None else Rows(first).gather(lanes.rows)
        address = (first[:, None] + lanes.columns).masked_fill(lanes.hidden, 0)
        slots = entries.view.index_select(0, address.add(entries.base).view(-1))
        return slots.masked_fill(lanes.hidden.view(-1), 0)
    assert batch.page_table is not None, "AttentionBatch needs kv_indptr or page_table"
    table = Flat(batch.page_table)
    rows = lanes.rows
    if rows is None:
        rows = torch.arange(len(lanes.hidden), device=batch.page_table.device)
    first = rows * batch.page_table.stride(0)
    page_of = torch.div(lanes.columns, batch.page_size, rounding_mode="floor")
    address = (first[:, None] + page_of).masked_fill(lanes.hidden, 0)
    pages = table.view.index_select(0, address.add(table.base).view(-1)).view(lanes.hidden.shape)
    slots = pages * batch.page_size + lanes.columns % batch.page_size
    return slots.masked_fill(lanes.hidden, 0).view(-1)


def _load(plane: torch.Tensor, slots: torch.Tensor, lanes: int, scale: float) -> torch.Tensor:
    """float32 [lanes, heads, width, columns] of the rows at `slots`."""
    fp8 = plane.dtype == torch.float8_e4m3fn  # has no indexed reads on some devices
    rows = Rows(plane.view(torch.uint8) if fp8 else plane).gather(slots)
    values = (rows.view(plane.dtype) if fp8 else rows).float()
    if scale != 1.0:
        values = values * scale
    return values.view(lanes, -1, *plane.shape[1:]).transpose(1, 2)


def _attend(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    lanes: _Lanes,
    batch: AttentionBatch,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(logits [lanes, Hkv, group, width], values [lanes, Hkv, width, Dv], what is hidden)."""
    count, heads = len(lanes.hidden), k.shape[1]
    slots = _slots(lanes, batch)
    hidden = lanes.hidden[:, None, None]
    keys = _load(k, slots, count, batch.k_scale)
    values = _load(v, slots, count, batch.v_scale).masked_fill(hidden.transpose(2, 3), 0.0)
    grouped = (q.float() * batch.scale).reshape(count, heads, -1, q.shape[-1])
    logits = torch.matmul(grouped, keys.transpose(2, 3)).masked_fill(hidden, _UNSEEN)
    return logits, values, hidden


def _split(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    tokens: _Tokens,
    batch: AttentionBatch,
    plan: SplitPlan,
) -> torch.Tensor:
    """Attention chunk by chunk, then merged; [T, Hkv, group, Dv]."""
    device = q.device
    absent = plan.valid == 0
    items = plan.item_tokens.masked_fill(absent, 0)
    rows = items if tokens.rows is None else Rows(tokens.rows).gather(items)
    start = plan.item_chunks.masked_fill(absent, 0) * plan.chunk_len
    columns = start[:, None] + torch.arange(plan.chunk_len, device=device)
    hidden = tokens.hidden(batch, columns, items) | absent[:, None] | (columns >= batch.max_kv_len)
    lanes = _Lanes(rows, columns, hidden)
    logits, values, unseen = _attend(Rows(q).gather(items), k, v, lanes, batch)
    best = logits.amax(-1, keepdim=True)
    weights = (logits - best).exp().masked_fill(unseen, 0.0)
    return _merge(best, weights.sum(-1, keepdim=True), torch.matmul(weights, values), plan)


def _merge(
    best: torch.Tensor, total: torch.Tensor, partial: torch.Tensor, plan: SplitPlan
) -> torch.Tensor:
    """Weigh the items of each token by their largest logit and their sum of weights."""
    first, stop = plan.merge_indptr[:-1, None], plan.merge_indptr[1:, None]
    item = first + torch.arange(plan.max_chunks, device=best.device)
    absent = item >= stop
    item = item.masked_fill(absent, 0).view(-1)
    absent = absent[:, :, None, None, None]

    def of_token(values: torch.Tensor) -> torch.Tensor:
        return Rows(values).gather(item).view(*absent.shape[:2], *values.shape[1:])

    bests = of_token(best).masked_fill(absent, _UNSEEN)
    factor = (bests - bests.amax(1, keepdim=True)).exp().masked_fill(absent, 0.0)
    sums = (of_token(total) * factor).sum(1)
    merged = (of_token(partial).masked_fill(absent, 0.0) * factor).sum(1)
    return merged / sums.masked_fill(sums == 0, 1.0)
