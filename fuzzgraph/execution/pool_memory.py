"""One plane or page map of an engine's pools, and what it holds where no request owns it."""

from __future__ import annotations

import math
from contextlib import suppress

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
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


def page_rows(plane: torch.Tensor, number: int, config: EngineConfig) -> int:
    """Slots of a page where KV plane `number` is [pages, page_size, ...]; 0 where it is by slot."""
    content, page = content_for(config), config.page_size
    row_bytes = math.prod(content.plane_shapes[number]) * content.storage_dtype.itemsize
    paged = page > 1 and plane.dim() > 2 and plane.shape[1] == page
    return page if paged and math.prod(plane.shape[2:]) * plane.itemsize == row_bytes else 0


class PoolPlane:
    """One tensor of the pools: KV slots or states, row by row.

    Args:
        signature: what rows hold that no request owns, by world.
        reserved_rows: rows of the reserved page. Padded rows may read all of them, as far as their
            fill length goes, so every world has the same there.
        written_rows: the first of these rows, which padded rows may write.
        page_rows: rows of a page where the tensor is [pages, page_rows, ...]; 0 where it is
            [rows, ...].
    """

    def __init__(
        self,
        name: str,
        tensor: torch.Tensor,
        signature: tuple[float, ...],
        reserved_rows: int = 1,
        page_rows: int = 0,
        written_rows: int = 1,
    ) -> None:
        self.name = name
        self.tensor = tensor
        self._page_rows = page_rows
        self.rows = tensor.view(torch.uint8) if page_rows else _as_bytes(tensor)
        """As bytes: copies and comparisons then work bit for bit in every dtype."""
        self._row_shape = self.rows.shape[2:] if page_rows else self.rows.shape[1:]
        self.count = len(tensor) * (page_rows or 1)
        """Rows that there are."""
        first = self.rows[RESERVED_SLOT] if page_rows else self.rows[RESERVED_SLOT:]
        self.reserved = first[:reserved_rows]
        self.written = first[:written_rows]
        """What padded rows may write."""
        # One row of each signature in the pool's dtype, to be broadcast over any number of rows.
        shape = (1, *tensor.shape[2 if page_rows else 1 :])
        self.filler = [
            self.bytes_of(torch.full(shape, value, device=tensor.device).to(tensor.dtype))
            for value in signature
        ]

    def is_view_of(self, tensor: torch.Tensor) -> bool:
        """Whether a tensor is the same view of the same memory."""
        mine = self.tensor
        return (mine.data_ptr(), mine.shape, mine.stride(), mine.dtype) == (
            tensor.data_ptr(), tensor.shape, tensor.stride(), tensor.dtype,
        )  # fmt: skip

    def bytes_of(self, values: torch.Tensor) -> torch.Tensor:
        """Values for some rows, [n, ...] bytes in the shape that a row has."""
        return _as_bytes(values).view(len(values), *self._row_shape)

    def put(
        self, rows: torch.Tensor, values: torch.Tensor, into: torch.Tensor | None = None
    ) -> None:
        """Write `bytes_of` some rows, into the plane or a tensor of its shape."""
        place = self.rows if into is None else into
        if self._page_rows:
            place.index_put_((rows // self._page_rows, rows % self._page_rows), values)
        else:
            place.index_copy_(0, rows, values)

    def fill(self, rows: torch.Tensor, world: int) -> None:
        self.put(rows, self.filler[world].expand(len(rows), *self._row_shape))

    def fill_unreserved(self, world: int) -> None:
        """Signatures everywhere but in the reserved slot."""
        for slot in range(1, len(self.reserved)):
            # Of several worlds' signatures: the two trap slots, if they lie in this page, must
            # hold different values, or what is read through a trap would not differ.
            self.reserved[slot] = self.filler[(slot - TRAPS[0]) % len(TRAPS)][0]
        self.fill_beyond_reserved(world)

    def fill_beyond_reserved(self, world: int) -> None:
        """Signatures everywhere but in the reserved page."""
        others = 1 if self._page_rows else RESERVED_SLOT + len(self.reserved)
        self.rows[others:] = self.filler[world]

    def flat(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, bytes] of the plane or a tensor of its shape; a copy where pages are apart."""
        return rows.reshape(self.count, -1)

    def changed_since_filled(self) -> torch.Tensor:
        """[n] rows that no longer hold what `fill_unreserved(0)` put, apart from those that padded
        rows may write."""
        now, written = self.rows.clone(), self.written.clone()
        self.fill_unreserved(0)
        self.written.copy_(written)
        changed = self.flat(now != self.rows).any(1)
        self.rows.copy_(now)
        return changed.nonzero().flatten()


class PageMap:
    """One page map of the pools: [request rows, positions] -> slot."""

    def __init__(self, name: str, table: torch.Tensor) -> None:
        self.name = name
        self.table = table
        self.flat = table.view(-1)
        self.width = table.shape[1]

    def put(self, places: torch.Tensor, slots: torch.Tensor) -> None:
        """Write slots to some `places`."""
        self.flat.index_copy_(0, places, slots)

    def fill_unreserved(self, world: int) -> None:
        self.table[RESERVED_ROW + 1 :] = TRAP_BY_WORLD[world]

    def places(self, rows: IntArray, lens: IntArray) -> IntArray:
        """Indices into `flat` of the first `lens[i]` positions of each row `rows[i]`."""
        starts = np.cumsum(lens) - lens
        columns = np.arange(int(lens.sum())) - np.repeat(starts, lens)
        return np.repeat(rows, lens) * self.width + columns


def group_name(name: str, group: int, layer: int = 0) -> str:
    """What a pool is called, by the KV cache group and the draft layer whose it is."""
    if layer:
        return f"draft_layers[{layer - 1}][{group}].{name}"
    return f"more_groups[{group - 1}].{name}" if group else name


def kv_signature(index: int, count: int) -> tuple[float, ...]:
    """The signature of KV plane `index` of `count`: keys, values, or latent rows."""
    if count == 1:  # latent attention: one plane is both keys and values
        return _LATENT_SIGNATURE
    return _KEY_SIGNATURE if index == 0 else _VALUE_SIGNATURE
