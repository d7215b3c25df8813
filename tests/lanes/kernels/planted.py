"""Kernels with one access too far, and ways to meet; each has a twin that stays inside."""

# No postponed annotations here: Triton reads `tl.constexpr` from the signature.
import triton
import triton.language as tl

import tests.lanes.kernels.launch  # noqa: F401, what a jit function is depends on it


@triton.jit
def copy(x, out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    inside = places < count
    tl.store(out + places, tl.load(x + places, mask=inside), mask=inside)  # the line


@triton.jit
def ratio(x, y, out):
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row) / tl.load(y + row))


@triton.jit
def shifted(x, out, by):
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row + by))


@triton.jit
def from_other(x, y, out):
    """Reaches y by a pointer to x."""
    distance = y.to(tl.int64) - x.to(tl.int64)
    tl.store(out, tl.load(x + distance // 4))


@triton.jit
def _fetch(x, place):
    return tl.load(x + place)  # the helper's line


@triton.jit
def by_helper(x, out, by):
    row = tl.program_id(0)
    tl.store(out + row, _fetch(x, row + by))


@triton.jit
def guarded_by_branch(x, out, count):
    row = tl.program_id(0)
    if row < count:
        tl.store(out + row, tl.load(x + row))
    else:
        tl.store(out + row, 7.0)


@triton.jit
def printing(x, out, by):
    row = tl.program_id(0)
    tl.device_print("row", row)
    tl.store(out + row, tl.load(x + row + by))


@triton.jit
def raising(x, out, by):
    row = tl.program_id(0)
    tl.store(out + row, tl.load(x + row + by))
    assert row < 2, "no third program"


@triton.jit
def add_atomically(x, out, by):
    row = tl.program_id(0)
    tl.atomic_add(out + row + by, tl.load(x + row))


@triton.jit
def gather_rows(table, lens, out, BLOCK: tl.constexpr):
    """Through addresses in memory."""
    row = tl.program_id(0)
    source = tl.load(table + row).to(tl.pointer_type(tl.float32))
    places = tl.arange(0, BLOCK)
    value = tl.load(source + places, mask=places < tl.load(lens + row), other=0.0)
    tl.store(out + row * BLOCK + places, value)


@triton.jit
def same_place(out, STRIDE: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out + row // STRIDE, row)


@triton.jit
def same_value(out):
    tl.store(out, 5)


@triton.jit
def same_value_at_last(out, READS: tl.constexpr):
    row = tl.program_id(0)
    tl.store(out, row)
    if READS:
        tl.store(out + 1 + row, tl.load(out))
    tl.store(out, 5)


@triton.jit
def neighbours(x, out, length):
    row = tl.program_id(0)
    left = tl.load(x + (row + length - 1) % length)
    tl.store(x + row, left + 1.0)


@triton.jit
def add_one(out):
    tl.atomic_add(out, 1)


@triton.jit
def counted_before(counts, out, count, BLOCK: tl.constexpr, ALONE: tl.constexpr):
    lane = tl.arange(0, BLOCK)
    if ALONE:
        tl.device_print("lanes do not print", count)
    tl.store(out + lane, tl.atomic_add(counts + lane, 1, mask=lane < count))


@triton.jit
def mark(out, count, BLOCK: tl.constexpr):
    places = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    tl.store(out + places, 1, mask=places < count)


@triton.jit
def first_half_then_all(out, total, HALF: tl.constexpr):
    """Reads twice as much as it wrote."""
    places = tl.arange(0, HALF)
    tl.store(out + places, 1.0)
    tl.store(total, tl.sum(tl.load(out + tl.arange(0, 2 * HALF)), 0))


@triton.jit
def ragged_copy(x, starts, lens, out):
    """A loop of another length in each program, and nothing behind it."""
    row = tl.program_id(0)
    start = tl.load(starts + row)
    for index in range(tl.load(lens + row)):
        tl.store(out + start + index, tl.load(x + start + index))
