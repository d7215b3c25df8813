"""One plane or page map of an engine's pools, and what it holds where no request owns it."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import torch

from fuzzgraph.world import RESERVED_ROW, RESERVED_SLOT, TRAPS, IntArray

_NAN = float("nan")
# Content of KV slots and states that no request owns, in worlds A, B and NAN_WORLD. Finite keys are
# small, so that their softmax weight never rounds to zero; values lie outside of [-4, 4], all that
# the model computes, so that a single stray read shows. A latent row is key and value at once: its
# signature is a compromise. All are exact in float8.
_KEY_SIGNATURE = (0.125, 0.1875, _NAN)
_VALUE_SIGNATURE = (5.0, -6.0, _NAN)
_LATENT_SIGNATURE = (1.5, -1.75, _NAN)
STATE_SIGNATURE = (9.0, -11.0, _NAN)
# Page maps have integers only: in the NaN world they hold world B's trap.
TRAP_BY_WORLD = (*TRAPS, TRAPS[1])


def _as_bytes(plane: torch.Tensor) -> torch.Tensor:
    """A view of the rows as bytes: copies and comparisons then work bit for bit in every dtype.

    [rows, bytes per row]; the dimensions stay as they are if rows have gaps, as in a cache that
    holds keys and values side by side.
    """
    # `reshape` would make a copy of such a cache, and the harness would write into the copy.
    with suppress(RuntimeError):
        plane = plane.view(len(plane), math.prod(plane.shape[1:]))
    return plane.view(torch.uint8)


class PoolPlane:
    """One tensor of the pools: KV slots or states, row by row.

    Args:
        signature: what rows hold that no request owns, by world.
        reserved_rows: rows of the reserved page. Padded rows write the first one and may read all
            of them, as far as their fill length goes, so every world has the same there.
    """

    def __init__(
        self,
        name: str,
        tensor: torch.Tensor,
        signature: tuple[float, ...],
        reserved_rows: int = 1,
    ) -> None:
        self.name = name
        self.tensor = tensor
        self.rows = _as_bytes(tensor)
        self.reserved = self.rows[RESERVED_SLOT : RESERVED_SLOT + reserved_rows]
        # One row of each signature in the pool's dtype, to be broadcast over any number of rows.
        shape = (1, *tensor.shape[1:])
        self.filler = [
            self.bytes_of(torch.full(shape, value, device=tensor.device).to(tensor.dtype))
            for value in signature
        ]

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor:
        """Values for some rows, as bytes in the shape that `rows` has."""
        return _as_bytes(values).view(len(values), *self.rows.shape[1:])

    def fill(self, rows: torch.Tensor, world: int) -> None:
        self.rows.index_copy_(0, rows, self.filler[world].expand(len(rows), *self.rows.shape[1:]))

    def fill_unreserved(self, world: int) -> None:
        """Signatures everywhere but in the reserved slot."""
        for slot in range(1, len(self.reserved)):
            # Of several worlds' signatures: the two trap slots, if they lie in this page, must
            # hold different values, or what is read through a trap would not differ.
            self.reserved[slot] = self.filler[(slot - TRAPS[0]) % len(TRAPS)][0]
        self.rows[RESERVED_SLOT + len(self.reserved) :] = self.filler[world]

    def changed_since_filled(self) -> torch.Tensor:
        """[n] rows, the reserved slot apart, that no longer hold what `fill_unreserved(0)` put."""
        now = self.rows.clone()
        self.fill_unreserved(0)
        changed = (now != self.rows).flatten(1).any(1)
        self.rows.copy_(now)
        return changed.nonzero().flatten()


class PageMap:
    """One page map of the pools: [request rows, positions] -> slot."""

    def __init__(self, name: str, table: torch.Tensor) -> None:
        self.name = name
        self.table = table
        self.flat = table.view(-1)
        self.width = table.shape[1]

    def fill_unreserved(self, world: int) -> None:
        self.table[RESERVED_ROW + 1 :] = TRAP_BY_WORLD[world]

    def places(self, rows: IntArray, lens: IntArray) -> IntArray:
        """Indices into `flat` of the first `lens[i]` positions of each row `rows[i]`."""
        starts = np.cumsum(lens) - lens
        columns = np.arange(int(lens.sum())) - np.repeat(starts, lens)
        return np.repeat(rows, lens) * self.width + columns


def kv_signature(index: int, count: int) -> tuple[float, ...]:
    """The signature of KV plane `index` of `count`: keys, values, or latent rows."""
    if count == 1:  # latent attention: one plane is both keys and values
        return _LATENT_SIGNATURE
    return _KEY_SIGNATURE if index == 0 else _VALUE_SIGNATURE
