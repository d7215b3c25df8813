"""Kernels in the manner of Triton's tutorials: softmax, matmul, dropout, layer norm, attention."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import torch
import triton
import triton.language as tl

from tests.lanes.kernels.launch import (
    COMPUTED_BY_STOCK,
    FLOATS,
    Launch,
    Random,
    floats,
    integers,
    number,
    pick,
    strided,
)


@triton.jit
def softmax(out, x, x_row, out_row, rows, columns, BLOCK: tl.constexpr):
    first = tl.program_id(0)
    for row in tl.range(first, rows, tl.num_programs(0), num_stages=2):
        places = tl.arange(0, BLOCK)
        inside = places < columns
        data = tl.load(x + row * x_row + places, mask=inside, other=-float("inf")).to(tl.float32)
        powers = tl.exp(data - tl.max(data, axis=0))
        tl.store(out + row * out_row + places, powers / tl.sum(powers, axis=0), mask=inside)


def draw_softmax(random: Random) -> Launch:
    rows, columns = number(random, 1, 7), number(random, 1, 30)
    x = floats(random, rows, columns, dtype=pick(random, *FLOATS))
    out = torch.zeros(rows, columns + 2)
    return Launch(
        softmax,
        (number(random, 1, 4),),
        (out, x, x.stride(0), out.stride(0), rows, columns),
        {"BLOCK": triton.next_power_of_2(columns)},
    )


@triton.jit
def _leaky(x):
    return tl.where(x >= 0, x, 0.01 * x)


@triton.jit
def matmul(
    a,
    b,
    c,
    M,
    N,
    K,
    a_row,
    a_column,
    b_row,
    b_column,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    GROUP: tl.constexpr,
    ACTIVATION: tl.constexpr,
):
    program = tl.program_id(axis=0)
    across = tl.cdiv(N, BLOCK_N)
    in_group = GROUP * across
    first = (program // in_group) * GROUP
    size = min(tl.cdiv(M, BLOCK_M) - first, GROUP)
    block_m = first + (program % in_group) % size
    block_n = (program % in_group) // size
    tl.assume(block_m >= 0)
    rows = (block_m * BLOCK_M + tl.arange(0, BLOCK_M)) % M
    columns = (block_n * BLOCK_N + tl.arange(0, BLOCK_N)) % N
    inner = tl.arange(0, BLOCK_K)
    a_at = a + rows[:, None] * a_row + inner[None, :] * a_column
    b_at = b + inner[:, None] * b_row + columns[None, :] * b_column
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for k in range(0, tl.cdiv(K, BLOCK_K)):
        left = tl.load(a_at, mask=inner[None, :] < K - k * BLOCK_K, other=0.0)
        right = tl.load(b_at, mask=inner[:, None] < K - k * BLOCK_K, other=0.0)
        total = tl.dot(left, right, total)
        a_at += BLOCK_K * a_column
        b_at += BLOCK_K * b_row
    if ACTIVATION == "leaky":
        total = _leaky(total)
    rows = block_m * BLOCK_M + tl.arange(0, BLOCK_M)
    columns = block_n * BLOCK_N + tl.arange(0, BLOCK_N)
    place = rows[:, None] * N + columns[None, :]
    inside = (rows[:, None] < M) & (columns[None, :] < N)
    tl.store(c + place, total.to(c.dtype.element_ty), mask=inside)


def draw_matmul(random: Random) -> Launch:
    M, N, K = (number(random, 1, 20) for _ in range(3))
    dtype = pick(random, *COMPUTED_BY_STOCK, torch.float8_e5m2)
    a, b = (strided(random, floats(random, *size).to(dtype)) for size in ((M, K), (K, N)))
    block_m, block_n = pick(random, 4, 8), pick(random, 1, 4, 16)
    return Launch(
        matmul,
        lambda meta: (triton.cdiv(M, meta["BLOCK_M"]) * triton.cdiv(N, meta["BLOCK_N"]),),
        (a, b, torch.zeros(M, N, dtype=pick(random, *FLOATS)), M, N, K, *a.stride(), *b.stride()),
        {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": pick(random, 1, 4, 8),
            "GROUP": pick(random, 1, 2),
            "ACTIVATION": pick(random, "", "leaky"),
        },
    )


@triton.jit
def dropout(x, out, count, p, seed, BLOCK: tl.constexpr):
    places = tl.program_id(axis=0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    value = tl.load(x + places, mask=inside)
    keep = tl.rand(seed, places) > p
    noise = tl.randint(seed, places) % 7
    tl.store(out + places, tl.where(keep, value / (1 - p), 0.0) + noise, mask=inside)


def draw_dropout(random: Random) -> Launch:
    count, block = number(random, 1, 30), pick(random, 4, 8)
    return Launch(
        dropout,
        (triton.cdiv(count, block),),
        (floats(random, count), torch.zeros(count), count, 0.4, number(random, 0, 1 << 40)),
        {"BLOCK": block},
    )


@triton.jit
def layer_norm(x, y, weight, bias, mean_out, rstd_out, row_stride, N, eps, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    y += row * row_stride
    x += row * row_stride
    mean = 0
    total = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        total += tl.load(x + columns, mask=columns < N, other=0.0).to(tl.float32)
    mean = tl.sum(total, axis=0) / N
    square = tl.zeros([BLOCK], dtype=tl.float32)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        value = tl.load(x + columns, mask=columns < N, other=0.0).to(tl.float32)
        value = tl.where(columns < N, value - mean, 0.0)
        square += value * value
    rstd = 1 / tl.sqrt(tl.sum(square, axis=0) / N + eps)
    tl.store(mean_out + row, mean)
    tl.store(rstd_out + row, rstd)
    for start in range(0, N, BLOCK):
        columns = start + tl.arange(0, BLOCK)
        inside = columns < N
        value = tl.load(x + columns, mask=inside, other=0.0).to(tl.float32)
        scaled = (value - mean) * rstd * tl.load(weight + columns, mask=inside)
        tl.store(y + columns, scaled + tl.load(bias + columns, mask=inside), mask=inside)


def draw_layer_norm(random: Random) -> Launch:
    rows, columns = number(random, 1, 5), number(random, 1, 30)
    x = floats(random, rows, columns, dtype=pick(random, torch.float32, torch.float16))
    return Launch(
        layer_norm,
        (rows,),
        (
            x,
            torch.zeros_like(x),
            floats(random, columns),
            floats(random, columns),
            torch.zeros(rows),
            torch.zeros(rows),
            x.stride(0),
            columns,
            1e-5,
        ),
        {"BLOCK": pick(random, 4, 8, 32)},
    )


@triton.jit
def blocks(
    a,
    b,
    c,
    M,
    N,
    K,
    a_row,
    a_column,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    BLOCK_K: tl.constexpr,
    PADDING: tl.constexpr,
):
    """Matmul by block pointers, as in the eighth tutorial."""
    row, column = tl.program_id(0) * BLOCK_M, tl.program_id(1) * BLOCK_N
    left = tl.make_block_ptr(a, (M, K), (a_row, a_column), (row, 0), (BLOCK_M, BLOCK_K), (1, 0))
    right = tl.make_block_ptr(b, (K, N), (N, 1), (0, column), (BLOCK_K, BLOCK_N), (1, 0))
    total = tl.zeros((BLOCK_M, BLOCK_N), dtype=tl.float32)
    for _ in range(0, K, BLOCK_K):
        one = tl.load(left, boundary_check=(0, 1), padding_option=PADDING)
        two = tl.load(right, boundary_check=(0, 1), padding_option="zero")
        total += tl.dot(tl.where(one == one, one, 0.0), two)
        left = tl.advance(left, (0, BLOCK_K))
        right = tl.advance(right, (BLOCK_K, 0))
    out = tl.make_block_ptr(c, (M, N), (N, 1), (row, column), (BLOCK_M, BLOCK_N), (1, 0))
    tl.store(out, total.to(c.dtype.element_ty), boundary_check=(0, 1))


def draw_blocks(random: Random) -> Launch:
    M, N, K = (number(random, 1, 12) for _ in range(3))
    a = strided(random, floats(random, M, K))
    block_m, block_n = pick(random, 2, 4), pick(random, 2, 8)
    return Launch(
        blocks,
        (triton.cdiv(M, block_m), triton.cdiv(N, block_n)),
        (a, floats(random, K, N), torch.zeros(M, N), M, N, K, *a.stride()),
        {
            "BLOCK_M": block_m,
            "BLOCK_N": block_n,
            "BLOCK_K": pick(random, 2, 4),
            "PADDING": pick(random, "zero", "nan"),
        },
    )


@triton.jit
def descriptors(x, rows_at, out, M, N, BLOCK_M: tl.constexpr, BLOCK_N: tl.constexpr):
    """Tensor descriptors: loads, stores and gathered rows."""
    block = tl.program_id(0)
    source = tl.make_tensor_descriptor(x, (M, N), (N, 1), (BLOCK_M, BLOCK_N))
    target = tl.make_tensor_descriptor(out, (M, N), (N, 1), (BLOCK_M, BLOCK_N))
    column = tl.program_id(1) * BLOCK_N
    data = source.load([block * BLOCK_M, column])
    target.store([block * BLOCK_M, column], data * 2.0 + block)


def draw_descriptors(random: Random) -> Launch:
    M, N = number(random, 1, 9), pick(random, 4, 8, 12)
    room = torch.zeros(2 * M * N + 64)
    first = (-room.data_ptr() // 4) % 4  # descriptors start at multiples of 16 bytes
    x = room[first : first + M * N].view(M, N)
    x.copy_(floats(random, M, N))
    second = first + -(-M * N // 4) * 4
    out = room[second : second + M * N].view(M, N)
    block_m = pick(random, 1, 2, 4)
    return Launch(
        descriptors,
        (triton.cdiv(M, block_m), triton.cdiv(N, 4)),
        (x, integers(random, 0, M - 1, 8), out, M, N),
        {"BLOCK_M": block_m, "BLOCK_N": 4},
    )


@triton.jit
def flash(
    q,
    k,
    v,
    out,
    scale,
    heads,
    length,
    row,
    BLOCK_M: tl.constexpr,
    BLOCK_N: tl.constexpr,
    DIM: tl.constexpr,
    CAUSAL: tl.constexpr,
):
    """Fused attention, the sixth tutorial: two passes over the keys of a causal block."""
    block = tl.program_id(0)
    base = tl.program_id(1).to(tl.int64) * length * row
    queries = block * BLOCK_M + tl.arange(0, BLOCK_M)
    dims = tl.arange(0, DIM)
    place = base + queries[:, None] * row + dims[None, :]
    query = tl.load(q + place, mask=(queries < length)[:, None], other=0.0)
    best = tl.zeros([BLOCK_M], dtype=tl.float32) - float("inf")
    total = tl.zeros([BLOCK_M], dtype=tl.float32) + 1.0
    value = tl.zeros([BLOCK_M, DIM], dtype=tl.float32)
    high = tl.minimum((block + 1) * BLOCK_M, length) if CAUSAL else length
    for start in range(0, high, BLOCK_N):
        start = tl.multiple_of(start, BLOCK_N)
        keys = start + tl.arange(0, BLOCK_N)
        at = base + keys[:, None] * row + dims[None, :]
        key = tl.load(k + at, mask=(keys < length)[:, None], other=0.0)
        logits = tl.dot(query, tl.trans(key)) * scale
        seen = keys[None, :] < length
        if CAUSAL:
            seen = seen & (queries[:, None] >= keys[None, :])
        logits = tl.where(seen, logits, -1.0e6)
        new_best = tl.maximum(best, tl.max(logits, 1))
        weights = tl.math.exp2(logits - new_best[:, None])
        fade = tl.math.exp2(best - new_best)
        total = total * fade + tl.sum(weights, 1)
        block_v = tl.load(v + at, mask=(keys < length)[:, None], other=0.0)
        value = tl.dot(weights.to(block_v.dtype), block_v, value * fade[:, None])
        best = new_best
    tl.store(out + place, value / total[:, None], mask=(queries < length)[:, None])


def draw_flash(random: Random) -> Launch:
    heads, length, dim = number(random, 1, 3), number(random, 1, 12), pick(random, 2, 4, 8)
    dtype = pick(random, *COMPUTED_BY_STOCK)
    q, k, v = (floats(random, heads, length, dim, dtype=dtype) for _ in range(3))
    block_m = pick(random, 2, 4)
    return Launch(
        flash,
        (triton.cdiv(length, block_m), heads),
        (q, k, v, torch.zeros(heads, length, dim), 0.5, heads, length, dim),
        {
            "BLOCK_M": block_m,
            "BLOCK_N": pick(random, 2, 4),
            "DIM": dim,
            "CAUSAL": pick(random, False, True),
        },
    )


DRAWS = {
    "softmax": draw_softmax,
    "matmul": draw_matmul,
    "dropout": draw_dropout,
    "layer_norm": draw_layer_norm,
    "blocks": draw_blocks,
    "descriptors": draw_descriptors,
    "flash": draw_flash,
}
