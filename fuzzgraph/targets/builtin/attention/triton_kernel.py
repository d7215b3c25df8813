"""Paged attention in Triton: compiled on a GPU, interpreted on a CPU.

One program computes the query heads of one KV head for one query token (or one work item of a
plan), block by block with an online softmax in float32. Addresses are taken as given, loads and
stores are masked by lengths only: what a table says is read, as on a device.
"""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import torch
import triton
import triton.language as tl

from fuzzgraph.targets.builtin.attention.batch import AttentionBatch, SplitPlan

__all__ = ["paged_attention"]

_MAX_BLOCK = 64
"""Keys per block at most, so that a block of wide heads still fits a GPU's registers."""


@triton.jit
def _attend(
    q,
    k,
    v,
    out,
    best_out,
    total_out,
    qo_indptr,
    kv_lens,
    kv_map,
    kv_indptr,
    custom_mask,
    mask_indptr,
    item_tokens,
    item_chunks,
    item_valid,
    scale,
    k_scale,
    v_scale,
    tokens,
    rows,
    max_q_len,
    max_kv_len,
    width,
    window,
    page_size,
    table_stride,
    q_token,
    q_head,
    k_slot,
    k_head,
    v_slot,
    v_head,
    out_token,
    out_head,
    GROUP: tl.constexpr,
    HEAD_DIM: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_GROUP: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    RAGGED: tl.constexpr,
    MASKED: tl.constexpr,
    CAUSAL: tl.constexpr,
    WINDOWED: tl.constexpr,
    PAGED: tl.constexpr,
    PLANNED: tl.constexpr,
):
    kv_head = tl.program_id(2)
    if PLANNED:
        item = tl.program_id(0)
        exists = tl.load(item_valid + item) != 0
        token = tl.load(item_tokens + item, mask=exists, other=0)
        first = tl.load(item_chunks + item, mask=exists, other=0) * width
        row = token
        if RAGGED:  # the row is the last one that starts at or before the token
            every = tl.arange(0, BLOCK_ROWS)
            starts = tl.load(qo_indptr + every, mask=every < rows, other=2147483647)
            row = tl.maximum(tl.sum((starts <= token).to(tl.int32), axis=0) - 1, 0)
    else:
        row = tl.program_id(0)
        exists = row >= 0
        token = row
        first = 0
        if RAGGED:
            token = tl.load(qo_indptr + row) + tl.program_id(1)
    length = tl.load(kv_lens + row, mask=exists, other=0)
    last = length - 1
    index = 0
    if RAGGED:
        index = token - tl.load(qo_indptr + row)
        end = tl.load(qo_indptr + row + 1)
        exists = exists & (token < end) & (index >= 0) & (index < max_q_len)
        last = length - end + token
    limit = tl.where(exists, tl.minimum(length, max_kv_len), 0)
    token = token.to(tl.int64)
    row = row.to(tl.int64)

    heads = tl.arange(0, BLOCK_GROUP)
    dims = tl.arange(0, BLOCK_DIM)
    v_dims = tl.arange(0, BLOCK_V)
    real_head = heads < GROUP
    q_heads = kv_head * GROUP + heads
    query = tl.load(
        q + token * q_token + q_heads[:, None] * q_head + dims[None, :],
        mask=real_head[:, None] & (dims < HEAD_DIM)[None, :] & exists,
        other=0.0,
    )
    query = query.to(tl.float32) * scale
    best = tl.full([BLOCK_GROUP], -1.0e30, tl.float32)
    total = tl.zeros([BLOCK_GROUP], tl.float32)
    value = tl.zeros([BLOCK_GROUP, BLOCK_V], tl.float32)
    if PAGED:
        map_start = row * table_stride
    else:
        map_start = tl.load(kv_indptr + row, mask=exists, other=0).to(tl.int64)
    if MASKED:
        mask_start = tl.load(mask_indptr + row, mask=exists, other=0) + index * length

    for start in range(0, width, BLOCK_KEYS):
        offsets = start + tl.arange(0, BLOCK_KEYS)
        keys = first + offsets
        seen = (keys < limit) & (offsets < width)
        if MASKED:
            seen = seen & (tl.load(custom_mask + mask_start + keys, mask=seen, other=0) != 0)
        else:
            if CAUSAL:
                seen = seen & (keys <= last)
                if WINDOWED:
                    seen = seen & (keys >= last - window)
        if PAGED:
            page = tl.load(kv_map + map_start + keys // page_size, mask=seen, other=0)
            slot = page.to(tl.int64) * page_size + keys % page_size
        else:
            slot = tl.load(kv_map + map_start + keys, mask=seen, other=0).to(tl.int64)
        key = tl.load(
            k + slot[:, None] * k_slot + kv_head * k_head + dims[None, :],
            mask=seen[:, None] & (dims < HEAD_DIM)[None, :],
            other=0.0,
        )
        key = key.to(tl.float32) * k_scale
        logits = tl.sum(query[:, None, :] * key[None, :, :], axis=2)
        logits = tl.where(seen[None, :], logits, -1.0e30)
        new_best = tl.maximum(best, tl.max(logits, axis=1))
        weights = tl.where(seen[None, :], tl.exp(logits - new_best[:, None]), 0.0)
        fade = tl.exp(best - new_best)
        block = tl.load(
            v + slot[:, None] * v_slot + kv_head * v_head + v_dims[None, :],
            mask=seen[:, None] & (v_dims < V_HEAD_DIM)[None, :],
            other=0.0,
        )
        block = block.to(tl.float32) * v_scale
        value = value * fade[:, None] + tl.sum(weights[:, :, None] * block[None, :, :], axis=1)
        total = total * fade + tl.sum(weights, axis=1)
        best = new_best

    stored = real_head[:, None] & (v_dims < V_HEAD_DIM)[None, :] & exists
    if PLANNED:
        item = item.to(tl.int64)
        place = item * out_token + q_heads[:, None] * out_head + v_dims[None, :]
        tl.store(out + place, value, mask=stored)
        lane = item * (tl.num_programs(2) * GROUP) + q_heads
        tl.store(best_out + lane, best, mask=real_head & exists)
        tl.store(total_out + lane, total, mask=real_head & exists)
    else:
        value = value / tl.where(total == 0.0, 1.0, total)[:, None]
        place = token * out_token + q_heads[:, None] * out_head + v_dims[None, :]
        tl.store(out + place, value.to(out.dtype.element_ty), mask=stored)


@triton.jit
def _merge(
    partial,
    best_in,
    total_in,
    out,
    merge_indptr,
    qo_indptr,
    rows,
    max_q_len,
    out_token,
    out_head,
    Q_HEADS: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    RAGGED: tl.constexpr,
):
    token = tl.program_id(0).to(tl.int64)
    head = tl.program_id(1)
    exists = token >= 0
    if RAGGED:
        every = tl.arange(0, BLOCK_ROWS)
        starts = tl.load(qo_indptr + every, mask=every < rows, other=2147483647)
        row = tl.maximum(tl.sum((starts <= token).to(tl.int32), axis=0) - 1, 0)
        index = token - tl.load(qo_indptr + row)
        end = tl.load(qo_indptr + row + 1)
        exists = (token < end) & (index >= 0) & (index < max_q_len)
    first = tl.load(merge_indptr + token)
    stop = tl.load(merge_indptr + token + 1)
    chunk = tl.arange(0, BLOCK_ITEMS)
    present = (chunk < MAX_CHUNKS) & (first + chunk < stop) & exists
    lane = (first + chunk).to(tl.int64) * Q_HEADS + head
    best = tl.load(best_in + lane, mask=present, other=-1.0e30)
    factor = tl.where(present, tl.exp(best - tl.max(best, axis=0)), 0.0)
    total = tl.sum(tl.load(total_in + lane, mask=present, other=0.0) * factor, axis=0)
    v_dims = tl.arange(0, BLOCK_V)
    real = v_dims < V_HEAD_DIM
    parts = tl.load(
        partial + lane[:, None] * V_HEAD_DIM + v_dims[None, :],
        mask=present[:, None] & real[None, :],
        other=0.0,
    )
    value = tl.sum(parts * factor[:, None], axis=0) / tl.where(total == 0.0, 1.0, total)
    place = token * out_token + head * out_head + v_dims
    tl.store(out + place, value.to(out.dtype.element_ty), mask=real & exists)


def paged_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    batch: AttentionBatch,
) -> None:
    """Like `torch_kernel.paged_attention`; the last dimension of each tensor is contiguous."""
    if batch.plan is None:
        _launch(q, k, v, out, batch, (out, out, out), batch.max_kv_len)
        return
    plan = batch.plan
    items, heads = len(plan.item_tokens), q.shape[1]
    partial = torch.empty((items, heads, out.shape[2]), dtype=torch.float32, device=q.device)
    best = torch.empty((items, heads), dtype=torch.float32, device=q.device)
    total = torch.empty_like(best)
    _launch(q, k, v, out, batch, (partial, best, total), plan.chunk_len)
    _launch_merge(out, batch, plan, (partial, best, total))


def _launch(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    batch: AttentionBatch,
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
    width: int,
) -> None:
    plan, lens, rows = batch.plan, batch.kv_lens, len(batch.kv_lens)
    ragged = batch.qo_indptr is not None
    grid = (rows, batch.max_q_len if ragged else 1, k.shape[1])
    if plan is not None:
        grid = (len(plan.item_tokens), 1, k.shape[1])
    if 0 in grid:
        return
    kv_map = batch.page_table if batch.kv_indptr is None else batch.kv_indices
    assert kv_map is not None, "AttentionBatch needs kv_indptr or page_table"
    group = q.shape[1] // k.shape[1]

    def present(tensor: torch.Tensor | None) -> torch.Tensor:
        return lens if tensor is None else tensor  # never read where absent

    _attend[grid](
        q,
        k,
        v,
        *results,
        present(batch.qo_indptr),
        lens,
        kv_map,
        present(batch.kv_indptr),
        present(batch.custom_mask),
        present(batch.mask_indptr),
        present(None if plan is None else plan.item_tokens),
        present(None if plan is None else plan.item_chunks),
        present(None if plan is None else plan.valid),
        batch.scale,
        batch.k_scale,
        batch.v_scale,
        len(q),
        rows,
        batch.max_q_len,
        batch.max_kv_len,
        width,
        batch.window,
        batch.page_size,
        kv_map.stride(0),
        q.stride(0),
        q.stride(1),
        k.stride(0),
        k.stride(1),
        v.stride(0),
        v.stride(1),
        results[0].stride(0),
        results[0].stride(1),
        GROUP=group,
        HEAD_DIM=q.shape[2],
        V_HEAD_DIM=out.shape[2],
        BLOCK_GROUP=triton.next_power_of_2(group),
        BLOCK_DIM=triton.next_power_of_2(q.shape[2]),
        BLOCK_V=triton.next_power_of_2(out.shape[2]),
        BLOCK_KEYS=min(_MAX_BLOCK, triton.next_power_of_2(max(width, 1))),
        BLOCK_ROWS=triton.next_power_of_2(rows),
        RAGGED=ragged,
        MASKED=batch.custom_mask is not None,
        CAUSAL=batch.causal,
        WINDOWED=batch.window > 0,
        PAGED=batch.kv_indptr is None,
        PLANNED=plan is not None,
    )


def _launch_merge(
    out: torch.Tensor,
    batch: AttentionBatch,
    plan: SplitPlan,
    results: tuple[torch.Tensor, torch.Tensor, torch.Tensor],
) -> None:
    rows = len(batch.kv_lens)
    if not out.numel():
        return
    ragged = batch.qo_indptr is not None
    _merge[(out.shape[0], out.shape[1])](
        *results,
        out,
        plan.merge_indptr,
        batch.qo_indptr if ragged else plan.merge_indptr,
        rows,
        batch.max_q_len,
        out.stride(0),
        out.stride(1),
        Q_HEADS=out.shape[1],
        V_HEAD_DIM=out.shape[2],
        BLOCK_V=triton.next_power_of_2(out.shape[2]),
        BLOCK_ITEMS=triton.next_power_of_2(max(plan.max_chunks, 1)),
        BLOCK_ROWS=triton.next_power_of_2(rows),
        MAX_CHUNKS=plan.max_chunks,
        RAGGED=ragged,
    )
