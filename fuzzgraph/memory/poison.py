"""Typed poison: the values that unwritten memory holds.

One value per dtype and world, so that a wrong read shows. Index dtypes hold the trap number of the
world: a row, page and slot that exists and that no request owns. Floats hold a finite value that
changes any result it enters. NaN is a world of its own, because `0 * NaN` is a bug in some engines
and allowed in others. A poison row is that value repeated over 64 bytes, the arena's unit of
layout.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.world import TRAPS

ROW_BYTES = 64
"""Alignment and unit of the arena, in bytes; every dtype's size divides it."""
NAN_WORLD = 2
"""World B with NaN in place of finite floats; 0 is world A and 1 world B."""
NAN_HOME = 3
"""World A with NaN in place of finite floats: the home of sessions that keep NaN alive."""

# Exact in float16, bfloat16 and float32, far above anything an engine computes (sums of values
# in [-2, 2]) and below float16's largest.
# The two worlds differ in sign, so that a maximum over scores and a sum both change with the world.
_FLOAT = (1008.0, -624.0, float("nan"), float("nan"))
# Exact in every 8-bit float with a sign; e4m3 ends at 448 (240 in the fnuz form).
_FLOAT8 = (112.0, -80.0, float("nan"), float("nan"))
# Bytes without a number's meaning: packed formats, masks, scales. Worlds A and B differ in every
# bit. There is no NaN for bytes, booleans and integers: its worlds have world A's or B's value.
_BYTE = (0xA5, 0x5A, 0x5A, 0xA5)
_BOOL = (True, False, False, True)
_TRAPS = (*TRAPS, TRAPS[1], TRAPS[0])

# Older releases of torch lack some of these dtypes. uint8 is not among them: engines hold masks and
# packed data in it, and no page or slot number.
_INDEX = {
    getattr(torch, name)
    for name in ("int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")
    if hasattr(torch, name)
}
_SIGNED_FLOAT8 = {
    getattr(torch, name)
    for name in ("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz")
    if hasattr(torch, name)
}


def poison_value(dtype: torch.dtype, world: int) -> int | float | bool:
    """The value that poisoned elements of `dtype` hold in `world`.

    Dtypes without a value of their own (packed and scale formats) get the byte poison of uint8.
    """
    if dtype in _INDEX:
        return _TRAPS[world]
    if dtype is torch.bool:
        return _BOOL[world]
    if dtype in _SIGNED_FLOAT8:
        return _FLOAT8[world]
    if (dtype.is_floating_point and dtype.itemsize > 1) or dtype.is_complex:
        return _FLOAT[world]
    return _BYTE[world]


@cache
def poison_row(dtype: torch.dtype, world: int) -> torch.Tensor:
    """64 bytes of poison as int64 [8] on the host."""
    value = poison_value(dtype, world)
    if dtype in _SIGNED_FLOAT8:
        row = torch.full((ROW_BYTES,), float(value)).to(dtype)
    elif value in _BYTE and dtype.itemsize == 1 and dtype is not torch.bool:
        row = torch.full((ROW_BYTES,), value, dtype=torch.uint8)
    elif dtype in _INDEX:
        # the wider unsigned dtypes cannot be filled; the signed ones have the same bytes
        signed = getattr(torch, str(dtype).removeprefix("torch.").removeprefix("u"))
        row = torch.full((ROW_BYTES // dtype.itemsize,), value, dtype=signed)
    else:
        row = torch.full((ROW_BYTES // dtype.itemsize,), value, dtype=dtype)
    return row.view(torch.int64)


def poison_rows(
    dtypes: Sequence[torch.dtype], counts: Sequence[int] | npt.NDArray[np.int64], world: int
) -> npt.NDArray[np.int64]:
    """int64 [sum(counts), 8]: `counts[i]` rows of poison for `dtypes[i]`, one after the other."""
    if not dtypes:
        return np.empty((0, 8), dtype=np.int64)
    kinds = {dtype: number for number, dtype in enumerate(dict.fromkeys(dtypes))}
    table = np.stack([poison_row(dtype, world).numpy() for dtype in kinds])
    rows: npt.NDArray[np.int64] = table[np.repeat([kinds[dtype] for dtype in dtypes], counts)]
    return rows
