"""Kernels whose traces are at stake."""

import triton
import triton.language as tl

SCALE = 2
FACTORS = [3]


@triton.jit
def scaled(source, target, count, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    values = tl.load(source + places, mask=places < count)
    tl.store(target + places, values * SCALE, mask=places < count)


@triton.jit
def scaled_by_list(source, target, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(target + places, tl.load(source + places) * FACTORS[0])


@triton.jit
def peeking(source, target, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    values = tl.load(source + places)
    seen = values.handle.data  # past every operation
    tl.store(target + places, values * int(seen.sum()))


@triton.jit
def branching(source, target, BLOCK: tl.constexpr):
    place = tl.program_id(0)
    value = tl.load(source + place)
    if value > 4:
        tl.store(target + place, value * 10)
    else:
        tl.store(target + place, value - 1)


@triton.jit
def rows(lengths, target, stride, BLOCK: tl.constexpr):
    row = tl.program_id(0)
    length = tl.load(lengths + row)
    total = row
    for start in range(0, length, BLOCK):
        total += start
    tl.store(target + row * stride, total)


@triton.jit
def overrun(source, target, count, BLOCK: tl.constexpr):
    places = tl.arange(0, BLOCK)
    tl.store(target + places, tl.load(source + places % 4), mask=places < count)


@triton.jit
def meeting(source, target, count, BLOCK: tl.constexpr):
    program = tl.program_id(0)
    tl.store(target + program % count, tl.load(source + program))
