"""Attention as serving engines write it: paged decode in two stages, unified, latent, merged."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import torch
import triton
import triton.language as tl

from tests.lanes.kernels.launch import (
    COMPUTED_BY_STOCK,
    Launch,
    Random,
    floats,
    indptr,
    integers,
    lengths,
    number,
    pick,
    strided,
)


@triton.jit
def decode_stage1(
    q,
    k,
    v,
    kv_indptr,
    kv_indices,
    partial,
    lse,
    kv_splits,
    scale,
    q_row,
    q_head,
    k_slot,
    k_head,
    v_slot,
    v_head,
    GROUP: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
    SPLITS: tl.constexpr,
    HEADS: tl.constexpr,
    CAP: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    split = tl.program_id(2)
    kv_head = head // GROUP
    dims = tl.arange(0, BLOCK_DIM)
    first = tl.load(kv_indptr + row)
    length = tl.load(kv_indptr + row + 1) - first
    used = tl.load(kv_splits + row)
    share = tl.cdiv(tl.cdiv(length, used), BLOCK_KEYS) * BLOCK_KEYS
    start = share * split
    end = tl.minimum(start + share, length)
    best = -float("inf")
    total = 0.0
    value = tl.zeros([BLOCK_DIM], dtype=tl.float32)
    if end > start:
        query = tl.load(q + row * q_row + head * q_head + dims, mask=dims < DIM, other=0.0)
        for begin in range(start, end, BLOCK_KEYS):
            keys = begin + tl.arange(0, BLOCK_KEYS)
            slot = tl.load(kv_indices + first + keys, mask=keys < end, other=0)
            inside = (keys[:, None] < end) & (dims[None, :] < DIM)
            key = tl.load(
                k + slot[:, None] * k_slot + kv_head * k_head + dims[None, :],
                mask=inside,
                other=0.0,
            )
            logits = tl.sum(query[None, :] * key, 1) * scale
            if CAP > 0:
                logits = CAP * (2 * tl.sigmoid(2 * (logits / CAP)) - 1)
            logits = tl.where(keys < end, logits, float("-inf"))
            block = tl.load(
                v + slot[:, None] * v_slot + kv_head * v_head + dims[None, :],
                mask=inside,
                other=0.0,
            )
            new_best = tl.maximum(tl.max(logits, 0), best)
            fade = tl.exp(best - new_best)
            weights = tl.exp(logits - new_best)
            value = value * fade + tl.sum(weights[:, None] * block, 0)
            total = total * fade + tl.sum(weights, 0)
            best = new_best
        place = (row * HEADS + head) * SPLITS + split
        tl.store(partial + place * DIM + dims, value / total, mask=dims < DIM)
        tl.store(lse + place, best + tl.log(total))


def draw_decode_stage1(random: Random) -> Launch:
    heads, group = pick(random, (2, 1), (2, 2), (4, 2))
    rows, dim, splits = number(random, 1, 3), number(random, 1, 8), number(random, 1, 3)
    counts = lengths(random, rows, 9)
    slots = int(counts.sum()) + 3
    dtype = pick(random, torch.float32, torch.float16)
    k = strided(random, floats(random, slots, heads // group, dim, dtype=dtype))
    v = floats(random, slots, heads // group, dim, dtype=dtype)
    q = floats(random, rows, heads, dim, dtype=dtype)
    if k.stride(2) != 1:
        k = k.contiguous()
    return Launch(
        decode_stage1,
        (rows, heads, splits),
        (
            q,
            k,
            v,
            indptr(counts),
            integers(random, 0, slots - 1, max(1, int(counts.sum())), dtype=torch.int64),
            torch.zeros(rows, heads, splits, dim),
            torch.zeros(rows, heads, splits),
            integers(random, 1, splits, rows),
            dim**-0.5,
            q.stride(0),
            q.stride(1),
            k.stride(0),
            k.stride(1),
            v.stride(0),
            v.stride(1),
        ),
        {
            "GROUP": group,
            "DIM": dim,
            "BLOCK_DIM": triton.next_power_of_2(dim),
            "BLOCK_KEYS": pick(random, 2, 4),
            "SPLITS": splits,
            "HEADS": heads,
            "CAP": pick(random, 0, 3.0),
        },
    )


@triton.jit
def decode_stage2(
    partial,
    lse,
    out,
    kv_indptr,
    kv_splits,
    sinks,
    HEADS: tl.constexpr,
    SPLITS: tl.constexpr,
    KEYS: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_DIM: tl.constexpr,
    SINK: tl.constexpr,
):
    row = tl.program_id(0)
    head = tl.program_id(1)
    length = tl.load(kv_indptr + row + 1) - tl.load(kv_indptr + row)
    share = tl.cdiv(tl.cdiv(length, tl.load(kv_splits + row)), KEYS) * KEYS
    dims = tl.arange(0, BLOCK_DIM)
    total = 0.0
    best = -float("inf")
    value = tl.zeros([BLOCK_DIM], dtype=tl.float32)
    place = (row * HEADS + head) * SPLITS
    for split in tl.range(0, SPLITS, num_stages=2):
        start = share * split
        if tl.minimum(start + share, length) > start:
            part = tl.load(partial + (place + split) * DIM + dims, mask=dims < DIM, other=0.0)
            weight = tl.load(lse + place + split)
            new_best = tl.maximum(weight, best)
            fade = tl.exp(best - new_best)
            value = value * fade + tl.exp(weight - new_best) * part
            total = total * fade + tl.exp(weight - new_best)
            best = new_best
    if SINK:
        total += tl.exp(tl.load(sinks + head) - best)
    tl.store(out + (row * HEADS + head) * DIM + dims, value / total, mask=dims < DIM)


def draw_decode_stage2(random: Random) -> Launch:
    rows, heads, splits, dim = number(random, 1, 4), 2, number(random, 1, 4), number(random, 1, 8)
    counts = lengths(random, rows, 12)
    return Launch(
        decode_stage2,
        (rows, heads),
        (
            floats(random, rows, heads, splits, dim),
            floats(random, rows, heads, splits),
            torch.zeros(rows, heads, dim, dtype=pick(random, torch.float32, torch.float16)),
            indptr(counts),
            integers(random, 1, splits, rows),
            floats(random, heads),
        ),
        {
            "HEADS": heads,
            "SPLITS": splits,
            "KEYS": pick(random, 1, 2, 4),
            "DIM": dim,
            "BLOCK_DIM": triton.next_power_of_2(dim),
            "SINK": pick(random, False, True),
        },
    )


@triton.jit
def grouped_latent(
    q,
    kv,
    kv_indptr,
    kv_indices,
    out,
    scale,
    kv_slot,
    HEADS: tl.constexpr,
    BLOCK_HEADS: tl.constexpr,
    NOPE: tl.constexpr,
    ROPE: tl.constexpr,
    BLOCK_KEYS: tl.constexpr,
):
    """Multi-latent decode: keys in two parts, values a view of the first."""
    row = tl.program_id(0)
    heads = tl.program_id(1) * BLOCK_HEADS + tl.arange(0, BLOCK_HEADS)
    real = heads < HEADS
    dims = tl.arange(0, NOPE)
    ropes = NOPE + tl.arange(0, ROPE)
    first = tl.load(kv_indptr + row)
    last = tl.load(kv_indptr + row + 1)
    place = (row * HEADS + heads[:, None]) * (NOPE + ROPE)
    nope = tl.load(q + place + dims[None, :], mask=real[:, None], other=0.0)
    rope = tl.load(q + place + ropes[None, :], mask=real[:, None], other=0.0)
    best = tl.zeros([BLOCK_HEADS], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_HEADS], dtype=tl.float32)
    value = tl.zeros([BLOCK_HEADS, NOPE], dtype=tl.float32)
    for begin in range(first, last, BLOCK_KEYS):
        keys = begin + tl.arange(0, BLOCK_KEYS)
        slot = tl.load(kv_indices + keys, mask=keys < last, other=0)
        key = tl.load(
            kv + slot[None, :] * kv_slot + dims[:, None], mask=(keys < last)[None, :], other=0.0
        )
        key_rope = tl.load(
            kv + slot[None, :] * kv_slot + ropes[:, None], mask=(keys < last)[None, :], other=0.0
        )
        logits = tl.dot(nope, key.to(nope.dtype))
        logits += tl.dot(rope, key_rope.to(rope.dtype))
        logits = tl.where((keys < last)[None, :], logits * scale, float("-inf"))
        new_best = tl.maximum(tl.max(logits, 1), best)
        fade = tl.exp(best - new_best)
        weights = tl.exp(logits - new_best[:, None])
        block = tl.trans(key)
        value = value * fade[:, None] + tl.dot(weights.to(block.dtype), block)
        total = total * fade + tl.sum(weights, 1)
        best = new_best
    if last > first:
        place = (row * HEADS + heads[:, None]) * NOPE + dims[None, :]
        tl.store(out + place, value / total[:, None], mask=real[:, None])


def draw_grouped_latent(random: Random) -> Launch:
    rows, heads = number(random, 1, 3), number(random, 1, 5)
    nope, rope = pick(random, (4, 2), (8, 4), (2, 1))
    counts = lengths(random, rows, 9)
    slots = int(counts.sum()) + 2
    dtype = pick(random, *COMPUTED_BY_STOCK)
    kv = floats(random, slots, nope + rope, dtype=dtype)
    block_heads = pick(random, 1, 2, 4)
    return Launch(
        grouped_latent,
        (rows, triton.cdiv(heads, block_heads)),
        (
            floats(random, rows, heads, nope + rope, dtype=dtype),
            kv,
            indptr(counts),
            integers(random, 0, slots - 1, max(1, int(counts.sum()))),
            torch.zeros(rows, heads, nope),
            0.3,
            kv.stride(0),
        ),
        {
            "HEADS": heads,
            "BLOCK_HEADS": block_heads,
            "NOPE": nope,
            "ROPE": rope,
            "BLOCK_KEYS": pick(random, 2, 4),
        },
    )


@triton.jit
def _mask_of(queries, keys, window, WINDOW: tl.constexpr):
    seen = keys[None, :] <= queries[:, None]
    if WINDOW:
        seen = seen & (queries[:, None] - keys[None, :] < window)
    return seen


@triton.jit
def unified(
    q,
    k,
    v,
    page_table,
    seq_lens,
    query_start_loc,
    out,
    scale,
    table_row,
    window,
    PAGE: tl.constexpr,
    DIM: tl.constexpr,
    BLOCK_Q: tl.constexpr,
    WINDOW: tl.constexpr,
    HEADS: tl.constexpr,
):
    """Prefill and decode rows in one launch over a page table; rows may be empty."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    block = tl.program_id(2)
    start = tl.load(query_start_loc + row)
    count = tl.load(query_start_loc + row + 1) - start
    if block * BLOCK_Q >= count:
        return
    length = tl.load(seq_lens + row)
    context = length - count
    local = block * BLOCK_Q + tl.arange(0, BLOCK_Q)
    dims = tl.arange(0, DIM)
    place = ((start + local[:, None]) * HEADS + head) * DIM + dims[None, :]
    query = tl.load(q + place, mask=(local < count)[:, None], other=0.0)
    best = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.full([BLOCK_Q], 1.0, tl.float32)
    value = tl.zeros([BLOCK_Q, DIM], dtype=tl.float32)
    pages = tl.cdiv(length, PAGE)
    for index in range(0, pages):
        page = tl.load(page_table + row * table_row + index)
        keys = index * PAGE + tl.arange(0, PAGE)
        slot = page.to(tl.int64) * PAGE + tl.arange(0, PAGE)
        inside = (keys < length)[:, None]
        key = tl.load(k + (slot[:, None] * HEADS + head) * DIM + dims[None, :], inside, 0.0)
        block_v = tl.load(v + (slot[:, None] * HEADS + head) * DIM + dims[None, :], inside, 0.0)
        logits = tl.dot(query, key.T) * scale
        seen = _mask_of(context + local, keys, window, WINDOW) & (keys < length)[None, :]
        logits = tl.where(seen, logits, float("-inf"))
        new_best = tl.maximum(best, tl.max(logits, axis=1))
        new_best = tl.where(new_best > float("-inf"), new_best, 0.0)
        weights = tl.exp2((logits - new_best[:, None]) * 1.4426950408889634)
        fade = tl.exp2((best - new_best) * 1.4426950408889634)
        total = total * fade + tl.sum(weights, axis=1)
        value = value * fade[:, None]
        value += tl.dot(weights.to(block_v.dtype), block_v)
        best = new_best
    tl.store(out + place, value / total[:, None], mask=(local < count)[:, None])


def draw_unified(random: Random) -> Launch:
    rows, heads, page, dim = number(random, 1, 3), 2, pick(random, 1, 2, 4), pick(random, 2, 4, 8)
    query_lens = lengths(random, rows, 4)
    lens = query_lens + lengths(random, rows, 6)
    pages = int(((lens + page - 1) // page).sum()) + 2
    width = int((lens.max() + page - 1) // page) + 1
    tokens = max(1, int(query_lens.sum()))
    dtype = pick(random, *COMPUTED_BY_STOCK)
    table = integers(random, 0, pages - 1, rows, width)
    block_q = pick(random, 1, 2, 4)
    return Launch(
        unified,
        (rows, heads, triton.cdiv(max(1, int(query_lens.max())), block_q)),
        (
            floats(random, tokens, heads, dim, dtype=dtype),
            floats(random, pages * page, heads, dim, dtype=dtype),
            floats(random, pages * page, heads, dim, dtype=dtype),
            table,
            lens.int(),
            indptr(query_lens),
            torch.zeros(tokens, heads, dim, dtype=dtype),
            0.4,
            table.stride(0),
            3,
        ),
        {
            "PAGE": page,
            "DIM": dim,
            "BLOCK_Q": block_q,
            "WINDOW": pick(random, False, True),
            "HEADS": heads,
        },
    )


@triton.jit
def merge_state(one, one_lse, two, two_lse, out, out_lse, DIM: tl.constexpr, BLOCK: tl.constexpr):
    token = tl.program_id(0)
    head = tl.program_id(1)
    place = token * tl.num_programs(1) + head
    first = tl.load(one_lse + place)
    second = tl.load(two_lse + place)
    first = float("-inf") if first == float("inf") else first
    second = float("-inf") if second == float("inf") else second
    top = tl.maximum(first, second)
    weight = tl.exp(first - top)
    other = tl.exp(second - top)
    total = weight + other
    dims = tl.arange(0, BLOCK)
    mixed = tl.load(one + place * DIM + dims, mask=dims < DIM) * (weight / total)
    mixed += tl.load(two + place * DIM + dims, mask=dims < DIM) * (other / total)
    tl.store(out + place * DIM + dims, mixed, mask=dims < DIM)
    tl.store(out_lse + place, tl.log(total) + top)


def draw_merge_state(random: Random) -> Launch:
    tokens, heads, dim = number(random, 1, 4), number(random, 1, 3), number(random, 1, 9)
    lse = floats(random, 2, tokens, heads)
    lse[0][torch.from_numpy(random.random((tokens, heads)) < 0.2)] = float("inf")
    dtype = pick(random, torch.float32, torch.float16)
    return Launch(
        merge_state,
        (tokens, heads),
        (
            floats(random, tokens, heads, dim, dtype=dtype),
            lse[0],
            floats(random, tokens, heads, dim, dtype=dtype),
            lse[1],
            torch.zeros(tokens, heads, dim),
            torch.zeros(tokens, heads),
        ),
        {"DIM": dim, "BLOCK": triton.next_power_of_2(dim)},
    )


DRAWS = {
    "decode_stage1": draw_decode_stage1,
    "decode_stage2": draw_decode_stage2,
    "grouped_latent": draw_grouped_latent,
    "unified": draw_unified,
    "merge_state": draw_merge_state,
}
