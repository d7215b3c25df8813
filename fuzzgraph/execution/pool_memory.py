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
# The same in NVFP4, as bytes of packed keys, packed values, scales of keys and scales of values:
# keys are up to 3/32 and values 4.5 or -6 by the scales of `content`. The numbers have no NaN, the
# scales have one.
_FP4_SIGNATURES = ((0x11, 0x22, 0x22), (0x77, 0xFF, 0xFF), (0x20, 0x24, 0x7F), (0x44, 0x48, 0x7F))
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


def page_shape(plane: torch.Tensor, number: int, config: EngineConfig) -> tuple[int, ...]:
    """The slots of a page where KV plane `number` is by page: (page_size,) where it is [pages,
    page_size, ...], two numbers where those of a page stand in groups; () where it is by slot."""
    content, page = content_for(config), config.page_size
    row_bytes = math.prod(content.plane_shapes[number]) * content.storage_dtype.itemsize
    for inner in (1, 2):
        shape, row = tuple(plane.shape[1 : 1 + inner]), plane.shape[1 + inner :]
        paged = page > 1 and len(row) > 0 and math.prod(shape) == page
        if paged and math.prod(row) * plane.itemsize == row_bytes:
            return shape
    return ()


class PoolPlane:
    """One tensor of the pools: KV slots or states, row by row.

    Args:
        signature: what rows hold that no request owns, by world.
        reserved_rows: rows of the reserved page. Padded rows may read all of them, as far as their
            fill length goes, so every world has the same there.
        written_rows: the first of these rows, which padded rows may write.
        page_shape: rows of a page where the tensor is [pages, *page_shape, ...]; () where it is
            [rows, ...].
    """

    def __init__(
        self,
        name: str,
        tensor: torch.Tensor,
        signature: tuple[float, ...],
        reserved_rows: int = 1,
        page_shape: tuple[int, ...] = (),
        written_rows: int = 1,
    ) -> None:
        self.name = name
        self.tensor = tensor
        self.signature = signature
        self._page_shape = page_shape
        self.rows = tensor.view(torch.uint8) if page_shape else _as_bytes(tensor)
        """As bytes: copies and comparisons then work bit for bit in every dtype."""
        self._row_shape = self.rows.shape[1 + len(page_shape) :]
        self.count = len(tensor) * math.prod(page_shape)
        """Rows that there are."""
        numbers = torch.arange(RESERVED_SLOT, RESERVED_SLOT + reserved_rows, device=tensor.device)
        self._reserved_rows = numbers
        last = RESERVED_SLOT + reserved_rows
        self.reserved = self.rows[RESERVED_SLOT if page_shape else slice(RESERVED_SLOT, last)]
        """All of the reserved page."""
        self.may_write = numbers[:written_rows]
        """Rows that padded rows may write."""
        # One row of each signature in the pool's dtype, to be broadcast over any number of rows.
        shape = (1, *tensor.shape[1 + len(page_shape) :])
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
        if self._page_shape:
            place.index_put_(self._places(rows), values)
        else:
            place.index_copy_(0, rows, values)

    def get(self, rows: torch.Tensor) -> torch.Tensor:
        """`bytes_of` what some rows hold now."""
        return self.rows[self._places(rows)]

    def _places(self, rows: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """An index for each leading dimension of the plane."""
        inner = []
        for size in reversed(self._page_shape):
            inner.append(rows % size)
            rows = rows // size
        return (rows, *reversed(inner))

    def fill(self, rows: torch.Tensor, world: int) -> None:
        self.put(rows, self.filler[world].expand(len(rows), *self._row_shape))

    def fill_unreserved(self, world: int) -> None:
        """Signatures everywhere but in the reserved slot."""
        # Of several worlds' signatures: the two trap slots, if they lie in this page, must hold
        # different values, or what is read through a trap would not differ.
        for number, _ in enumerate(TRAPS):
            self.fill(self._reserved_rows[1 + number :: len(TRAPS)], number)
        self.fill_beyond_reserved(world)

    def fill_beyond_reserved(self, world: int) -> None:
        """Signatures everywhere but in the reserved page."""
        others = 1 if self._page_shape else RESERVED_SLOT + len(self.reserved)
        self.rows[others:] = self.filler[world]

    def flat(self, rows: torch.Tensor) -> torch.Tensor:
        """[rows, bytes] of the plane or a tensor of its shape; a copy where pages are apart."""
        return rows.reshape(self.count, -1)

    def changed_since_filled(self) -> torch.Tensor:
        """[n] rows that no longer hold what `fill_unreserved(0)` put, apart from those that padded
        rows may write."""
        now, written = self.rows.clone(), self.get(self.may_write)
        self.fill_unreserved(0)
        self.put(self.may_write, written)
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
    """The signature of KV plane `index` of `count`: keys, values, or latent rows; of four those of
    NVFP4."""
    if count == len(_FP4_SIGNATURES):
        return _FP4_SIGNATURES[index]
    if count == 1:  # latent attention: one plane is both keys and values
        return _LATENT_SIGNATURE
    return _KEY_SIGNATURE if index == 0 else _VALUE_SIGNATURE
