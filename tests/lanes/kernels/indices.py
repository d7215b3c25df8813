"""Metadata and cache kernels: who writes where, with loops over loaded bounds."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import torch
import triton
import triton.language as tl

from tests.lanes.kernels.launch import (
    FLOATS,
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
def kv_indices(
    req_to_token,
    req_pool_indices,
    lens,
    kv_indptr,
    kv_start,
    out,
    stride: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(axis=0)
    request = tl.load(req_pool_indices + row)
    offset = tl.load(kv_indptr + row)
    start = 0
    end = 0
    if kv_start:
        start = tl.load(kv_start + row).to(tl.int32)
        end = start
    end += tl.load(lens + row).to(tl.int32)
    for step in range(tl.cdiv(end - start, BLOCK)):
        places = tl.arange(0, BLOCK).to(tl.int64) + step * BLOCK
        inside = places < end - start
        data = tl.load(req_to_token + request * stride + start + places, mask=inside)
        tl.store(out + offset + places, data, mask=inside)


def draw_kv_indices(random: Random) -> Launch:
    rows, width = number(random, 1, 6), number(random, 4, 20)
    begin = lengths(random, rows, 3)
    counts = lengths(random, rows, width - 3)
    table = integers(random, 0, 99, rows + 2, width)
    return Launch(
        kv_indices,
        (rows,),
        (
            table,
            integers(random, 0, rows + 1, rows, dtype=torch.int64),
            counts,
            indptr(counts),
            pick(random, None, begin),
            torch.full((int(counts.sum()) + 2,), -1, dtype=pick(random, torch.int32, torch.int64)),
        ),
        {"stride": width, "BLOCK": pick(random, 2, 8)},
    )


@triton.jit
def paged_table(
    req_to_token,
    req_pool_indices,
    lens,
    out,
    in_row,
    out_row,
    PAGE: tl.constexpr,
    BLOCK: tl.constexpr,
):
    row = tl.program_id(0)
    request = tl.load(req_pool_indices + row)
    pages = tl.cdiv(tl.load(lens + row), PAGE)
    done = 0
    while done < pages:
        page = done + tl.arange(0, BLOCK)
        inside = page < pages
        token = tl.load(req_to_token + request * in_row + page * PAGE, mask=inside, other=-1)
        tl.store(out + row * out_row + page, token // PAGE, mask=inside)
        done += BLOCK


def draw_paged_table(random: Random) -> Launch:
    rows, page, pages = number(random, 1, 5), pick(random, 1, 2, 4), number(random, 1, 5)
    table = integers(random, 0, 40, rows + 1, page * pages)
    out = torch.full((rows, pages + 1), -7, dtype=torch.int32)
    return Launch(
        paged_table,
        (rows,),
        (
            table,
            integers(random, 0, rows, rows),
            lengths(random, rows, page * pages),
            out,
            table.stride(0),
            out.stride(0),
        ),
        {"PAGE": page, "BLOCK": pick(random, 1, 2, 4)},
    )


@triton.jit
def set_kv_buffer(
    k,
    v,
    k_cache,
    v_cache,
    slots,
    k_row,
    v_row,
    scale,
    WIDTH: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """Scatter of new keys and values; a negative slot is skipped."""
    token = tl.program_id(0)
    slot = tl.load(slots + token).to(tl.int64)
    if slot < 0:
        return
    part = tl.program_id(1) * BLOCK + tl.arange(0, BLOCK)
    inside = part < WIDTH
    key = tl.load(k + token * k_row + part, mask=inside)
    value = tl.load(v + token * v_row + part, mask=inside)
    key = (key.to(tl.float32) / scale).to(k_cache.dtype.element_ty)
    tl.store(k_cache + slot * WIDTH + part, key, mask=inside)
    tl.store(v_cache + slot * WIDTH + part, value.to(v_cache.dtype.element_ty), mask=inside)


def draw_set_kv_buffer(random: Random) -> Launch:
    tokens, width, slots = number(random, 1, 5), number(random, 1, 9), 9
    where = torch.from_numpy(random.permutation(slots)[:tokens].copy()).int()
    where[torch.from_numpy(random.random(tokens) < 0.2)] = -1
    dtype, cache = pick(random, *FLOATS), pick(random, *FLOATS)
    k = strided(random, floats(random, tokens, width, dtype=dtype))
    if k.stride(-1) != 1:
        k = k.contiguous()
    v = floats(random, tokens, width, dtype=dtype)
    block = pick(random, 2, 4, 16)
    return Launch(
        set_kv_buffer,
        (tokens, triton.cdiv(width, block)),
        (
            k,
            v,
            torch.zeros(slots, width, dtype=cache),
            torch.zeros(slots, width, dtype=cache),
            where,
            k.stride(0),
            v.stride(0),
            pick(random, 1.0, 0.5, 3.0),
        ),
        {"WIDTH": width, "BLOCK": block},
    )


@triton.jit
def compact(flags, counts, out, size, BLOCK: tl.constexpr):
    """Positions of what is set, row by row: a scan and stores to scanned places."""
    row = tl.program_id(0)
    places = tl.arange(0, BLOCK)
    flag = tl.load(flags + row * size + places, mask=places < size, other=0)
    rank = tl.cumsum(flag, 0) - flag
    tl.store(out + row * size + rank, places, mask=flag != 0)
    tl.store(counts + row, tl.sum(flag, 0))


def draw_compact(random: Random) -> Launch:
    rows, size = number(random, 1, 5), number(random, 1, 12)
    return Launch(
        compact,
        (rows,),
        (
            integers(random, 0, 1, rows, size),
            torch.zeros(rows, dtype=torch.int32),
            torch.full((rows, size), -1, dtype=torch.int32),
            size,
        ),
        {"BLOCK": triton.next_power_of_2(size)},
    )


@triton.jit
def in_place(x, length, STEPS: tl.constexpr, BLOCK: tl.constexpr):
    """Reads back what the same program wrote."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < length
    for step in tl.static_range(STEPS):
        value = tl.load(x + places, mask=inside, other=0.0)
        tl.store(x + places, value * 0.5 + step, mask=inside)


def draw_in_place(random: Random) -> Launch:
    length, block = number(random, 1, 20), pick(random, 2, 4, 8)
    return Launch(
        in_place,
        (triton.cdiv(length, block),),
        (floats(random, length, dtype=pick(random, torch.float32, torch.float16)), length),
        {"STEPS": number(random, 1, 3), "BLOCK": block},
    )


@triton.jit
def pointer_table(table, out, lens, BLOCK: tl.constexpr):
    """One buffer for each program, by its address in memory."""
    row = tl.program_id(0)
    source = tl.load(table + row).to(tl.pointer_type(tl.float32))
    places = tl.arange(0, BLOCK)
    value = tl.load(source + places, mask=places < tl.load(lens + row), other=0.0)
    tl.store(out + row * BLOCK + places, value)


def draw_pointer_table(random: Random) -> Launch:
    rows, block = number(random, 1, 4), pick(random, 2, 4)
    sources = KEPT[: rows * 4].view(rows, 4)
    table = torch.tensor([row.data_ptr() for row in sources], dtype=torch.int64)
    return Launch(
        pointer_table,
        (rows,),
        (table, torch.zeros(rows, block), integers(random, 0, block, rows)),
        {"BLOCK": block},
    )


KEPT = torch.arange(16.0)
"""What the pointer tables lead to."""

DRAWS = {
    "kv_indices": draw_kv_indices,
    "paged_table": draw_paged_table,
    "set_kv_buffer": draw_set_kv_buffer,
    "compact": draw_compact,
    "in_place": draw_in_place,
    "pointer_table": draw_pointer_table,
}
