"""Paged attention in Triton: compiled on a GPU, interpreted on a CPU.

One program computes the query heads of one KV head for one query token (or one work item of a
plan), block by block with an online softmax in float32. Addresses are taken as given, loads and
stores are masked by lengths only: what a table says is read, as on a device.
"""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
# mypy: disable-error-code="no-untyped-def,untyped-decorator"
import torch
import triton
import triton.language as tl
from triton.runtime import JITFunction

from fuzzgraph.targets.builtin.attention.batch import AttentionBatch, SplitPlan

_MAX_BLOCK = 64
"""Keys per block at most."""
_COMPILED_ELEMENTS = 1 << 13
_INTERPRETED_ELEMENTS = 1 << 20
"""Largest intermediate of a program: what registers hold, and what makes an interpreted program,
which computes many lanes side by side, worth its overhead."""


@triton.jit
def _decode_e4m3(bits):
    """float32 of float8_e4m3fn bits, for devices that have no such type."""
    magnitude = bits.to(tl.int32) & 127
    normal = ((magnitude << 20) + (120 << 23)).to(tl.float32, bitcast=True)
    value = tl.where(magnitude < 8, magnitude.to(tl.float32) * 0.001953125, normal)
    value = tl.where(magnitude == 127, float("nan"), value)
    return tl.where(bits >= 128, -value, value)


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
    lanes,
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
    LANES: tl.constexpr,
    KV_HEADS: tl.constexpr,
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
    FP8: tl.constexpr,
):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    exists = lane < lanes
    kv_head = lane % KV_HEADS
    unit = lane // KV_HEADS
    if PLANNED:
        exists = exists & (tl.load(item_valid + unit, mask=exists, other=0) != 0)
        token = tl.load(item_tokens + unit, mask=exists, other=0)
        first = tl.load(item_chunks + unit, mask=exists, other=0) * width
        row = token
        if RAGGED:  # the row is the last one that starts at or before the token
            every = tl.arange(0, BLOCK_ROWS)
            starts = tl.load(qo_indptr + every, mask=every < rows, other=2147483647)
            before = (starts[None, :] <= token[:, None]).to(tl.int32)
            row = tl.maximum(tl.sum(before, axis=1) - 1, 0)
    else:
        row = unit // max_q_len
        token = row
        first = lane * 0
        if RAGGED:
            token = tl.load(qo_indptr + row, mask=exists, other=0) + unit % max_q_len
    length = tl.load(kv_lens + row, mask=exists, other=0)
    last = length - 1
    index = lane * 0
    if RAGGED:
        index = token - tl.load(qo_indptr + row, mask=exists, other=0)
        end = tl.load(qo_indptr + row + 1, mask=exists, other=0)
        exists = exists & (token < end) & (index >= 0) & (index < max_q_len)
        last = length - end + token
    limit = tl.where(exists, tl.minimum(length, max_kv_len), 0)
    token = token.to(tl.int64)
    row = row.to(tl.int64)

    # Tensors below are [lanes, heads, keys, dims], with 1 where an axis is missing.
    dims = tl.arange(0, BLOCK_DIM)[None, :]
    v_dims = tl.arange(0, BLOCK_V)[None, None, :]
    head = tl.arange(0, BLOCK_GROUP)[None, :]
    q_head_of = kv_head[:, None] * GROUP + head
    real_head = (head < GROUP) & exists[:, None]
    query = tl.load(
        q + (token[:, None] * q_token + q_head_of * q_head)[:, :, None] + dims[None, :, :],
        mask=real_head[:, :, None] & (dims < HEAD_DIM)[None, :, :],
        other=0.0,
    )
    query = query.to(tl.float32) * scale
    best = tl.full([LANES, BLOCK_GROUP], -1.0e30, tl.float32)
    total = tl.full([LANES, BLOCK_GROUP], 0.0, tl.float32)
    value = tl.full([LANES, BLOCK_GROUP, BLOCK_V], 0.0, tl.float32)
    if PAGED:
        map_start = row * table_stride
    else:
        map_start = tl.load(kv_indptr + row, mask=exists, other=0).to(tl.int64)
    if MASKED:
        mask_start = tl.load(mask_indptr + row, mask=exists, other=0) + index * length

    for start in range(0, width, BLOCK_KEYS):
        offsets = (start + tl.arange(0, BLOCK_KEYS))[None, :]
        keys = first[:, None] + offsets
        seen = (keys < limit[:, None]) & (offsets < width)
        if MASKED:
            allowed = tl.load(custom_mask + mask_start[:, None] + keys, mask=seen, other=0)
            seen = seen & (allowed != 0)
        else:
            if CAUSAL:
                seen = seen & (keys <= last[:, None])
                if WINDOWED:
                    seen = seen & (keys >= last[:, None] - window)
        if PAGED:
            page = tl.load(kv_map + map_start[:, None] + keys // page_size, mask=seen, other=0)
            slot = page.to(tl.int64) * page_size + keys % page_size
        else:
            slot = tl.load(kv_map + map_start[:, None] + keys, mask=seen, other=0).to(tl.int64)
        key = tl.load(
            k + (slot * k_slot + kv_head[:, None] * k_head)[:, :, None] + dims[None, :, :],
            mask=seen[:, :, None] & (dims < HEAD_DIM)[None, :, :],
            other=0,
        )
        if FP8:
            key = _decode_e4m3(key)
        key = key.to(tl.float32) * k_scale
        logits = tl.sum(query[:, :, None, :] * key[:, None, :, :], axis=3)
        logits = tl.where(seen[:, None, :], logits, -1.0e30)
        new_best = tl.maximum(best, tl.max(logits, axis=2))
        weights = tl.where(seen[:, None, :], tl.exp(logits - new_best[:, :, None]), 0.0)
        fade = tl.exp(best - new_best)
        block = tl.load(
            v + (slot * v_slot + kv_head[:, None] * v_head)[:, :, None] + v_dims,
            mask=seen[:, :, None] & (v_dims < V_HEAD_DIM),
            other=0,
        )
        if FP8:
            block = _decode_e4m3(block)
        block = block.to(tl.float32) * v_scale
        added = tl.sum(weights[:, :, :, None] * block[:, None, :, :], axis=2)
        value = value * fade[:, :, None] + added
        total = total * fade + tl.sum(weights, axis=2)
        best = new_best

    stored = real_head[:, :, None] & (v_dims < V_HEAD_DIM)
    if PLANNED:
        item = unit.to(tl.int64)[:, None]
        tl.store(
            out + (item * out_token + q_head_of * out_head)[:, :, None] + v_dims, value, stored
        )
        place = item * (KV_HEADS * GROUP) + q_head_of
        tl.store(best_out + place, best, real_head)
        tl.store(total_out + place, total, real_head)
    else:
        value = (value / tl.where(total == 0.0, 1.0, total)[:, :, None]).to(out.dtype.element_ty)
        place = token[:, None] * out_token + q_head_of * out_head
        tl.store(out + place[:, :, None] + v_dims, value, stored)


@triton.jit
def _merge(
    partial,
    best_in,
    total_in,
    out,
    merge_indptr,
    qo_indptr,
    lanes,
    rows,
    max_q_len,
    out_token,
    out_head,
    LANES: tl.constexpr,
    Q_HEADS: tl.constexpr,
    V_HEAD_DIM: tl.constexpr,
    BLOCK_V: tl.constexpr,
    BLOCK_ITEMS: tl.constexpr,
    BLOCK_ROWS: tl.constexpr,
    MAX_CHUNKS: tl.constexpr,
    RAGGED: tl.constexpr,
):
    lane = tl.program_id(0) * LANES + tl.arange(0, LANES)
    token = (lane // Q_HEADS).to(tl.int64)
    head = lane % Q_HEADS
    exists = lane < lanes
    if RAGGED:
        every = tl.arange(0, BLOCK_ROWS)
        starts = tl.load(qo_indptr + every, mask=every < rows, other=2147483647)
        before = (starts[None, :] <= token[:, None]).to(tl.int32)
        row = tl.maximum(tl.sum(before, axis=1) - 1, 0)
        index = token - tl.load(qo_indptr + row)
        end = tl.load(qo_indptr + row + 1)
        exists = exists & (token < end) & (index >= 0) & (index < max_q_len)
    first = tl.load(merge_indptr + token, mask=exists, other=0)
    stop = tl.load(merge_indptr + token + 1, mask=exists, other=0)
    item = first[:, None] + tl.arange(0, BLOCK_ITEMS)[None, :]
    present = (item < stop[:, None]) & (item < first[:, None] + MAX_CHUNKS)
    place = item.to(tl.int64) * Q_HEADS + head[:, None]
    best = tl.load(best_in + place, mask=present, other=-1.0e30)
    factor = tl.where(present, tl.exp(best - tl.max(best, axis=1)[:, None]), 0.0)
    total = tl.sum(tl.load(total_in + place, mask=present, other=0.0) * factor, axis=1)
    v_dims = tl.arange(0, BLOCK_V)[None, :]
    parts = tl.load(
        partial + (place * V_HEAD_DIM)[:, :, None] + v_dims[None, :, :],
        mask=present[:, :, None] & (v_dims < V_HEAD_DIM)[None, :, :],
        other=0.0,
    )
    value = tl.sum(parts * factor[:, :, None], axis=1)
    value = (value / tl.where(total == 0.0, 1.0, total)[:, None]).to(out.dtype.element_ty)
    place = token * out_token + head * out_head
    tl.store(out + place[:, None] + v_dims, value, exists[:, None] & (v_dims < V_HEAD_DIM))


_INTERPRETED = not isinstance(_attend, JITFunction)


def _lanes_per_program(lanes: int, elements: int) -> int:
    """Lanes of one program: one on a GPU, as many as memory allows where programs are slow."""
    if not _INTERPRETED:
        return 1
    room = max(1, _INTERPRETED_ELEMENTS // elements)
    return min(int(triton.next_power_of_2(lanes)), 1 << (room.bit_length() - 1))


def _keys_per_block(width: int, elements: int) -> int:
    """Keys computed at a time, where each key makes intermediates of this many elements."""
    room = (_INTERPRETED_ELEMENTS if _INTERPRETED else _COMPILED_ELEMENTS) // elements
    return max(1, min(_MAX_BLOCK, room, int(triton.next_power_of_2(max(width, 1)))))


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
    units = rows * (batch.max_q_len if ragged else 1) if plan is None else len(plan.item_tokens)
    lanes = units * k.shape[1]
    if not lanes:
        return
    kv_map = batch.page_table if batch.kv_indptr is None else batch.kv_indices
    assert kv_map is not None, "AttentionBatch needs kv_indptr or page_table"
    group = q.shape[1] // k.shape[1]
    blocks = {
        "BLOCK_GROUP": triton.next_power_of_2(group),
        "BLOCK_DIM": triton.next_power_of_2(q.shape[2]),
        "BLOCK_V": triton.next_power_of_2(out.shape[2]),
    }
    per_key = blocks["BLOCK_GROUP"] * max(blocks["BLOCK_DIM"], blocks["BLOCK_V"])
    block_keys = _keys_per_block(width, per_key)
    per_program = _lanes_per_program(lanes, per_key * block_keys)

    def present(tensor: torch.Tensor | None) -> torch.Tensor:
        return lens if tensor is None else tensor  # never read where absent

    fp8 = k.dtype == torch.float8_e4m3fn
    if fp8:
        k, v = k.view(torch.uint8), v.view(torch.uint8)
    _attend[(triton.cdiv(lanes, per_program),)](
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
        lanes,
        rows,
        batch.max_q_len if ragged else 1,
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
        LANES=per_program,
        KV_HEADS=k.shape[1],
        GROUP=group,
        HEAD_DIM=q.shape[2],
        V_HEAD_DIM=out.shape[2],
        **blocks,
        BLOCK_KEYS=block_keys,
        BLOCK_ROWS=triton.next_power_of_2(rows),
        RAGGED=ragged,
        MASKED=batch.custom_mask is not None,
        CAUSAL=batch.causal,
        WINDOWED=batch.window > 0,
        PAGED=batch.kv_indptr is None,
        PLANNED=plan is not None,
        FP8=fp8,
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
    lanes = out.shape[0] * out.shape[1]
    block_items = triton.next_power_of_2(max(plan.max_chunks, 1))
    block_v = triton.next_power_of_2(out.shape[2])
    per_program = _lanes_per_program(lanes, block_items * block_v)
    _merge[(triton.cdiv(lanes, per_program),)](
        *results,
        out,
        plan.merge_indptr,
        batch.qo_indptr if ragged else plan.merge_indptr,
        lanes,
        rows,
        batch.max_q_len,
        out.stride(0),
        out.stride(1),
        LANES=per_program,
        Q_HEADS=out.shape[1],
        V_HEAD_DIM=out.shape[2],
        BLOCK_V=block_v,
        BLOCK_ITEMS=block_items,
        BLOCK_ROWS=triton.next_power_of_2(rows),
        MAX_CHUNKS=plan.max_chunks,
        RAGGED=ragged,
    )
