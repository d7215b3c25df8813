"""Poisons the graph pool before each replay, in as few copies as possible.

Small regions that lie side by side are poisoned by one copy from rows prepared for them. A large
region is poisoned by repeating one block, so that no second copy of a large pool is held.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby

import torch

from fuzzgraph.memory.placement import Layout
from fuzzgraph.memory.poison import ROW_BYTES, poison_rows
from fuzzgraph.memory.regions import Region

# Rows of the block that a large region is filled from: 128 KiB, long enough for a fast copy.
_BLOCK_ROWS = 2048


class PoolPoison:
    """Writes poison into graph regions that lie one behind the other."""

    def __init__(self, layout: Layout, regions: Sequence[Region]) -> None:
        self._layout = layout
        self._pieces = [list(piece) for large, piece in groupby(regions, _is_large) if not large]
        self._large = [region for region in regions if _is_large(region)]
        # World -> (rows of the arena, poison for them); made at the first use of a world.
        self._copies: dict[int, list[tuple[torch.Tensor, torch.Tensor]]] = {}

    def write(self, world: int) -> None:
        """Every row as `world` has it, red zones included."""
        copies = self._copies.get(world)
        if copies is None:
            copies = self._copies[world] = self._prepared(world)
        for rows, poison in copies:
            rows.copy_(poison)

    def _prepared(self, world: int) -> list[tuple[torch.Tensor, torch.Tensor]]:
        copies = [(self._rows(piece), self._poison(piece, world)) for piece in self._pieces]
        blocks = {
            region.dtype: self._layout.poison_row(region.dtype, world).repeat(_BLOCK_ROWS, 1)
            for region in self._large
        }
        for region in self._large:
            rows, block = self._rows([region]), blocks[region.dtype]
            # As many whole blocks as fit, by one broadcast copy, then what is left over.
            whole = len(rows) // _BLOCK_ROWS * _BLOCK_ROWS
            copies += [
                (rows[:whole].view(-1, *block.shape), block),
                (rows[whole:], block[: len(rows) - whole]),
            ]
        return copies

    def _rows(self, regions: Sequence[Region]) -> torch.Tensor:
        return self._layout.arena.rows[regions[0].start // ROW_BYTES : regions[-1].end // ROW_BYTES]

    def _poison(self, regions: Sequence[Region], world: int) -> torch.Tensor:
        counts = [_row_count(region) for region in regions]
        rows = poison_rows([region.dtype for region in regions], counts, world)
        return torch.from_numpy(rows).to(self._layout.arena.device)


def _row_count(region: Region) -> int:
    return (region.end - region.start) // ROW_BYTES


def _is_large(region: Region) -> bool:
    return _row_count(region) >= _BLOCK_ROWS
