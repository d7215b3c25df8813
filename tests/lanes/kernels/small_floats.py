"""Kernels of floats of 8 bits, which the stock interpreter does not round as devices do."""

from __future__ import annotations

import torch
import triton
import triton.language as tl

from tests.lanes.kernels.arithmetic import draw_narrow_floats
from tests.lanes.kernels.launch import Draw, Launch, Random, floats, number

FP8 = (torch.float8_e4m3fn, torch.float8_e5m2)


def draw_small_floats(random: Random) -> Launch:
    """To FP8 and back."""
    return draw_narrow_floats(random, most=200, scales=(1.0, 1e-2, 300.0), to=FP8)


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
