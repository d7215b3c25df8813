"""Arithmetic, reductions, scans and shapes, where numpy's order of work could show."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import torch
import triton
import triton.language as tl

from tests.lanes.kernels.launch import (
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
def _place(rows, columns, row_stride, column_stride):
    return rows[:, None] * row_stride + columns[None, :] * column_stride


@triton.jit
def reductions(
    x,
    sums,
    extremes,
    places,
    rows,
    columns,
    x_block,
    x_row,
    x_column,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    AXIS: tl.constexpr,
    LAYOUT: tl.constexpr,
):
    """Sums and extremes along an axis of loaded, transposed, broadcast and computed blocks."""
    block = tl.program_id(0)
    row, column = tl.arange(0, ROWS), tl.arange(0, COLUMNS)
    inside = (row[:, None] < rows) & (column[None, :] < columns)
    data = tl.load(x + block * x_block + _place(row, column, x_row, x_column), inside, 0.0)
    data = data.to(tl.float32)
    if LAYOUT == 1:
        data = tl.trans(tl.trans(data) * 3.0 + row[None, :])
    elif LAYOUT == 2:
        data = data * tl.broadcast_to(column[None, :].to(tl.float32), ROWS, COLUMNS)
    elif LAYOUT == 3:
        data = tl.broadcast_to((row * 0.37 + block).to(tl.float32)[:, None], ROWS, COLUMNS)
    elif LAYOUT == 4:
        data = tl.reshape(tl.trans(tl.reshape(data, [COLUMNS, ROWS])), [ROWS, COLUMNS])
    if AXIS == 2:
        tl.store(sums + block, tl.sum(data))
        tl.store(extremes + block, tl.max(data))
        tl.store(places + block, tl.min(data, axis=1, keep_dims=True).to(tl.int32).sum())
    else:
        kept = ROWS if AXIS == 1 else COLUMNS
        where = block * kept + tl.arange(0, ROWS if AXIS == 1 else COLUMNS)
        tl.store(sums + where, tl.sum(data, AXIS))
        tl.store(extremes + where, tl.max(data, AXIS))
        tl.store(places + where, tl.argmax(data, AXIS, tie_break_left=True))


def draw_reductions(random: Random) -> Launch:
    blocks, rows, columns = number(random, 1, 4), number(random, 1, 9), number(random, 1, 40)
    if random.random() < 0.15:
        rows, columns = pick(random, (2, 200), (40, 40), (1, 260), (130, 3))
    x = strided(random, floats(random, blocks, rows, columns, dtype=pick(random, *FLOATS)))
    size = 512 * blocks
    return Launch(
        reductions,
        (blocks,),
        (
            x,
            torch.zeros(size),
            torch.zeros(size),
            torch.zeros(size, dtype=torch.int32),
            rows,
            columns,
            *x.stride(),
        ),
        {
            "ROWS": triton.next_power_of_2(rows),
            "COLUMNS": triton.next_power_of_2(columns),
            "AXIS": number(random, 0, 2),
            "LAYOUT": number(random, 0, 4),
        },
    )


@triton.jit
def elementwise(x, y, out, count, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Functions whose vector form in numpy might round otherwise than its scalar form."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    a = tl.load(x + places, mask=inside, other=1.0).to(tl.float32)
    b = tl.load(y + places, mask=inside, other=2.0).to(tl.float32)
    if KIND == 0:
        result = tl.exp(a) + tl.exp2(b)
    elif KIND == 1:
        result = tl.log(tl.abs(a) + 0.1) * tl.log2(tl.abs(b) + 0.1)
    elif KIND == 2:
        result = tl.sin(a * 9.0) - tl.cos(b)
    elif KIND == 3:
        result = tl.sqrt(tl.abs(a)) / (tl.abs(b) + 1e-3) + tl.rsqrt(tl.abs(a) + 0.5)
    elif KIND == 4:
        result = tl.where(a > b, tl.sigmoid(a), tl.floor(b) + tl.ceil(a))
    elif KIND == 5:
        result = tl.fma(a, b, a) + tl.clamp(a, -0.5, 0.5) + tl.minimum(a, b)
    elif KIND == 6:
        result = tl.erf(a) + tl.div_rn(a, tl.abs(b) + 0.5)
    else:
        result = tl.exp((tl.log(tl.abs(a.to(tl.float64)) + 0.5) * b).to(tl.float32))
    tl.store(out + places, result.to(out.dtype.element_ty), mask=inside)


def draw_elementwise(random: Random) -> Launch:
    count, block = number(random, 1, 70), pick(random, 8, 16, 32)
    dtype = pick(random, *FLOATS)
    return Launch(
        elementwise,
        (triton.cdiv(count, block),),
        (
            floats(random, count, dtype=dtype),
            floats(random, count, dtype=dtype) * 3,
            torch.zeros(count, dtype=pick(random, *FLOATS)),
            count,
        ),
        {"KIND": number(random, 0, 7), "BLOCK": block},
    )


@triton.jit
def whole_numbers(x, y, out, count, shift, KIND: tl.constexpr, BLOCK: tl.constexpr):
    """Integer arithmetic: signs, widths, wrap-around, constants of every size."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    a = tl.load(x + places, mask=inside, other=3)
    b = tl.load(y + places, mask=inside, other=5)
    if KIND == 0:
        result = (a * 1103515245 + b) ^ (a >> 3)
    elif KIND == 1:
        result = a // (b | 1) + a % (b | 1)
    elif KIND == 2:
        result = (a << shift) - (b >> shift) + ~a
    elif KIND == 3:
        result = tl.where((a > b) & (a != 7), a - b, -a) + 50000
    elif KIND == 4:
        result = tl.minimum(a, b) * tl.maximum(a, 3) + (a == b)
    elif KIND == 5:
        result = tl.cdiv(a, 4) * 4 + (a.to(tl.int8) + b.to(tl.int8)) + tl.abs(b)
    elif KIND == 6:
        result = tl.umulhi(a.to(tl.uint32), b.to(tl.uint32)).to(tl.int64)
    else:
        result = a.to(tl.float32).to(tl.int32, bitcast=True) + (b.to(tl.int16) * 3)
    tl.store(out + places, result.to(out.dtype.element_ty), mask=inside)


def draw_whole_numbers(random: Random) -> Launch:
    count, block = number(random, 1, 40), pick(random, 4, 8, 16)
    kind = number(random, 0, 7)
    wide = torch.int64 if kind not in (5, 6, 7) and random.random() < 0.3 else torch.int32
    return Launch(
        whole_numbers,
        (triton.cdiv(count, block),),
        (
            integers(random, -200, 200, count, dtype=wide),
            integers(random, -60, 60, count, dtype=wide),
            torch.zeros(count, dtype=pick(random, torch.int64, torch.int32)),
            count,
            number(random, 0, 5),
        ),
        {"KIND": kind, "BLOCK": block},
    )


@triton.jit
def _worse(value, index, other, other_index):
    keep = (value > other) | ((value == other) & (index < other_index))
    return tl.where(keep, value, other), tl.where(keep, index, other_index)


@triton.jit
def _blend(a, b):
    return a * 0.5 + b


@triton.jit
def combined(x, out, index, scanned, rows, COLUMNS: tl.constexpr, KIND: tl.constexpr):
    """Reductions and scans with combine functions of the kernel's own."""
    row = tl.program_id(0)
    column = tl.arange(0, COLUMNS)
    data = tl.load(x + row * COLUMNS + column)
    if KIND == 0:
        best, where = tl.reduce((data, column), 0, _worse)
        tl.store(out + row, best)
        tl.store(index + row, where)
        tl.store(scanned + row * COLUMNS + column, tl.associative_scan(data, 0, _blend))
    elif KIND == 1:
        square = tl.broadcast_to(data[None, :], 2, COLUMNS) + tl.arange(0, 2)[:, None]
        tl.store(out + row, tl.sum(tl.reduce(square, 1, _blend)))
        tl.store(scanned + row * COLUMNS + column, tl.cumsum(data, 0, reverse=True))
    elif KIND == 2:
        tl.store(index + row, tl.xor_sum(column * 3 + row, 0))
        tl.store(scanned + row * COLUMNS + column, tl.cumprod(data, 0))
    elif KIND == 3:
        tl.store(scanned + row * COLUMNS + column, tl.sort(data))
        tl.store(out + row, tl.reduce(data, 0, _blend, keep_dims=True).sum())
    else:
        backwards = tl.associative_scan(tl.flip(data, 0), 0, _blend, reverse=True)
        tl.store(scanned + row * COLUMNS + column, backwards)
        values, where = tl.max(data, 0, return_indices=True)
        tl.store(out + row, values)
        tl.store(index + row, where)


def draw_combined(random: Random) -> Launch:
    rows, columns = number(random, 1, 4), pick(random, 2, 4, 8)
    dtype = pick(random, torch.float32, torch.float16)
    return Launch(
        combined,
        (rows,),
        (
            floats(random, rows, columns, dtype=dtype),
            torch.zeros(rows),
            torch.zeros(rows, dtype=torch.int32),
            torch.zeros(rows, columns, dtype=dtype),
            rows,
        ),
        {"COLUMNS": columns, "KIND": number(random, 0, 4)},
    )


@triton.jit
def narrow_floats(x, out, back, count, BLOCK: tl.constexpr):
    """Conversions between widths of floats, by Triton's own rounding."""
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    value = tl.load(x + places, mask=inside, other=0.0)
    small = value.to(tl.float32).to(out.dtype.element_ty)
    tl.store(out + places, small, mask=inside)
    again = tl.load(out + places, mask=inside).to(tl.float32)
    tl.store(back + places, again.to(back.dtype.element_ty), mask=inside)


def draw_narrow_floats(
    random: Random,
    most: int = 40,
    scales: tuple[float, ...] = (1.0, 1e-3, 30.0),
    to: tuple[torch.dtype, ...] = FLOATS,
) -> Launch:
    count, block = number(random, 1, most), pick(random, 8, 16)
    scale = pick(random, *scales)
    return Launch(
        narrow_floats,
        (triton.cdiv(count, block),),
        (
            (floats(random, count) * scale).to(pick(random, *FLOATS)),
            torch.zeros(count, dtype=pick(random, *to)),
            torch.zeros(count, dtype=pick(random, *FLOATS)),
            count,
        ),
        {"BLOCK": block},
    )


@triton.jit
def shapes(x, out, rows, SIZE: tl.constexpr, KIND: tl.constexpr):
    """Joins, splits, gathers, histograms and other ways to move elements."""
    row = tl.program_id(0)
    place = tl.arange(0, SIZE)
    data = tl.load(x + row * SIZE + place)
    target = out + row * SIZE * 2
    if KIND == 0:
        both = tl.join(data, data * 2)
        left, right = tl.split(both)
        tl.store(target + tl.arange(0, SIZE * 2), tl.reshape(both, [SIZE * 2]))
        tl.store(target + place, left + right + row)
    elif KIND == 1:
        tl.store(target + place, tl.gather(data, (place * 3 + row) % SIZE, 0))
    elif KIND == 2:
        tl.store(target + place, tl.histogram(tl.abs(data) % SIZE, SIZE))
    elif KIND == 3:
        both = tl.cat(data, place, can_reorder=True)
        tl.store(target + tl.arange(0, SIZE * 2), both)
    elif KIND == 4:
        wide = tl.reshape(data, [2, SIZE // 2]).permute(1, 0)
        tl.store(target + place, tl.ravel(wide))
    else:
        mixed = tl.interleave(data, place + row)
        tl.store(target + tl.arange(0, SIZE * 2), mixed)


def draw_shapes(random: Random) -> Launch:
    rows, size = number(random, 1, 4), pick(random, 2, 4, 8)
    return Launch(
        shapes,
        (rows,),
        (
            integers(random, -9, 9, rows, size),
            torch.zeros(rows, size * 2, dtype=torch.int32),
            rows,
        ),
        {"SIZE": size, "KIND": number(random, 0, 5)},
    )


@triton.jit
def loops(x, bounds, out, count, WIDTH: tl.constexpr, KIND: tl.constexpr):
    """Loops and branches over values that differ between programs."""
    row = tl.program_id(0)
    low = tl.load(bounds + row * 2)
    high = tl.load(bounds + row * 2 + 1)
    lane = tl.arange(0, WIDTH)
    total = tl.zeros([WIDTH], dtype=tl.float32)
    if KIND == 0:
        for index in range(low, high):
            total += tl.load(x + index * WIDTH + lane) * (index + 1)
    elif KIND == 1:
        for index in range(low, low + 3, 2):
            if index % 2 == 0:
                total += index
            elif index > 2:
                total -= tl.load(x + lane) / (index - 1)
    elif KIND == 2:
        index = low
        while index < high:
            total += tl.load(x + index * WIDTH + lane)
            index += 1 + (index & 1)
    elif KIND == 3:
        if high <= low:
            return
        for outer in tl.range(low, high):
            for inner in range(outer, high):
                total += outer * 2 - inner
    elif KIND == 4:
        for index in tl.static_range(3):
            if index + low < high and row != 1:
                total += tl.load(x + (low + index) * WIDTH + lane, mask=lane < index, other=-1.0)
    else:
        for index in range(high, low, -1):
            scale = 1.0 / index if index > 1 else 2.0
            total = total * scale + index * tl.full([WIDTH], index, tl.int32)
    tl.store(out + row * WIDTH + lane, total)


def draw_loops(random: Random) -> Launch:
    rows, width, count = number(random, 1, 5), pick(random, 1, 2, 4), 9
    bounds = integers(random, 0, 6, rows, 2)
    return Launch(
        loops,
        (rows,),
        (floats(random, count, width), bounds, torch.zeros(rows, width), count),
        {"WIDTH": width, "KIND": number(random, 0, 5)},
    )


@triton.jit
def persistent(x, out, strides, rows, WIDTH: tl.constexpr):
    """Programs that share the rows among them, with strides of 64 and of 8 bits from memory."""
    wide = tl.load(strides).to(tl.int64)
    narrow = tl.load(strides).to(tl.int8)
    for row in tl.range(tl.program_id(0), rows, tl.num_programs(0)):
        value = tl.load(x + row * wide + tl.arange(0, WIDTH))
        tl.store(out + wide * row + tl.arange(0, WIDTH), value + narrow * row)


def draw_persistent(random: Random) -> Launch:
    programs, rounds, width = number(random, 1, 4), number(random, 1, 3), pick(random, 1, 4)
    rows = programs * rounds
    x = floats(random, rows, width)
    return Launch(
        persistent,
        (programs,),
        (x, torch.zeros(rows, width), torch.tensor([width]), rows),
        {"WIDTH": width},
    )


@triton.jit
def settled_lately(x, y, out, flags, SIZE: tl.constexpr, KIND: tl.constexpr):
    """What versions of the interpreter compute differently: each kind its own operation."""
    row = tl.program_id(0)
    lane = row * SIZE + tl.arange(0, SIZE)
    one, two = tl.load(x + lane), tl.load(y + lane)
    more, less = one > two, one < 0.5
    if KIND == 0:  # sums of booleans
        found = ((more + less) + (more * less)).to(tl.float32)
    elif KIND == 1:
        found = tl.fma(one, two, one)
    elif KIND == 2:  # the layout of a reversed scan decides how a sum goes on
        found = tl.sum(tl.cumsum(one * two, 0, reverse=True), 0) + one
    elif KIND == 3:  # NaN at one place
        holes = tl.where(less & (tl.arange(0, SIZE) == 1), float("nan"), one)
        found = tl.argmax(holes, 0).to(tl.float32) + tl.argmin(holes, 0, tie_break_left=False)
    elif KIND == 4:
        found = -one + tl.clamp(two, -0.5, 0.5) + tl.minimum(one, two)
    else:
        found = tl.where(flags > 0, one, two)
    tl.store(out + lane, found)


def draw_settled_lately(random: Random) -> Launch:
    rows, size = number(random, 1, 4), pick(random, 2, 8, 16)
    x, y = floats(random, rows, size), floats(random, rows, size)
    return Launch(
        settled_lately,
        (rows,),
        (x, y, torch.zeros(rows, size), number(random, 0, 1)),
        {"SIZE": size, "KIND": number(random, 0, 5)},
    )


DRAWS = {
    "persistent": draw_persistent,
    "settled_lately": draw_settled_lately,
    "reductions": draw_reductions,
    "elementwise": draw_elementwise,
    "whole_numbers": draw_whole_numbers,
    "combined": draw_combined,
    "narrow_floats": draw_narrow_floats,
    "shapes": draw_shapes,
    "loops": draw_loops,
}
