"""Kernels of floats of 8 bits, which the stock interpreter does not round as devices do."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.lanes.kernels.arithmetic import narrow_floats
from tests.lanes.kernels.launch import FLOATS, Draw, Launch, Random, floats, number, pick

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def draw_small_floats(random: Random) -> Launch:
    """To FP8 and back."""
    count, block = number(random, 1, 200), pick(random, 8, 16)
    scale = pick(random, 1.0, 1e-2, 300.0)
    return Launch(
        narrow_floats,
        (triton.cdiv(count, block),),
        (
            (floats(random, count) * scale).to(pick(random, *FLOATS)),
            torch.zeros(count, dtype=pick(random, *FP8)),
            torch.zeros(count, dtype=pick(random, *FLOATS)),
            count,
        ),
        {"BLOCK": block},
    )


@triton.jit
def weighted(weights, values, out, BLOCK: tl.constexpr):
    """A product whose left side becomes FP8, as the right one is."""
    row = tl.program_id(0) * BLOCK * BLOCK
    place = row + tl.arange(0, BLOCK)[:, None] * BLOCK + tl.arange(0, BLOCK)[None, :]
    value = tl.load(values + place)
    weight = tl.load(weights + place).to(value.dtype)
    tl.store(out + place, tl.dot(weight, value))


def draw_weighted(random: Random) -> Launch:
    blocks, block = number(random, 1, 3), 16
    size = blocks, block, block
    return Launch(
        weighted,
        (blocks,),
        (
            floats(random, *size).abs(),
            floats(random, *size).to(torch.float8_e4m3fn),
            torch.zeros(size),
        ),
        {"BLOCK": block},
    )


DRAWS: dict[str, Draw] = {"small_floats": draw_small_floats, "weighted": draw_weighted}
