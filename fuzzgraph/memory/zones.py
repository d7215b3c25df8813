"""Checks the red zones of many regions at once, and reads them element by element after a hit.

Zones are compared in rows of 64 bytes. A payload may end within a row; its own bytes are masked
out there, so that an overrun by a single byte is seen.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import cached_property
from typing import Literal, cast

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.memory.arena import Arena
from fuzzgraph.memory.poison import ROW_BYTES, poison_row, poison_rows
from fuzzgraph.memory.regions import Region
from fuzzgraph.observation import ZoneHit
from fuzzgraph.rules.writes import Overrun, overrun


class ZonePlan:
    """Which rows of the arena are red zones of some regions, and what they must hold."""

    def __init__(self, arena: Arena, regions: Sequence[Region]) -> None:
        bounds = np.array(
            [(r.start, r.offset, r.offset + r.nbytes, r.end) for r in regions], dtype=np.int64
        ).reshape(-1, 4)
        # Starts and payload starts lie on rows. Payload ends need not: round those up to the next
        # row, and treat the row in which such a payload ends ("cut") apart.
        ends = bounds[:, 2]
        cut = np.flatnonzero(ends % ROW_BYTES)
        bounds[:, 2] += -ends % ROW_BYTES
        bounds //= ROW_BYTES
        # Read in pairs, the four bounds are [zone before) and [zone after) of each region.
        full, counts = _rows_between(bounds.reshape(-1, 2))
        # Cut rows come first, so that "apply the mask" is one slice of the gathered rows.
        rows = np.concatenate([bounds[cut, 2] - 1, full])
        self._partial = len(cut)
        self._regions = [*(regions[int(index)] for index in cut), *regions]
        self._counts = np.concatenate([np.ones_like(cut), counts.reshape(-1, 2).sum(1)])
        self._arena = arena
        self.index = torch.from_numpy(rows).to(arena.device)
        self._mask_host = _edge_masks(np.array([regions[int(i)].nbytes for i in cut]))
        self._mask = torch.from_numpy(self._mask_host).to(arena.device)
        # Allocated once: `seen` is asked after each replay.
        self._seen = arena.rows.new_empty((len(rows), ROW_BYTES // 8))
        self._edges_seen = self._seen[: self._partial]
        self._expected: dict[int, torch.Tensor] = {}

    @property
    def held_bytes(self) -> int:
        """Bytes of the tensors that this plan keeps, the edges' masks left out."""
        return self.index.nbytes + self._seen.nbytes * (1 + len(self._expected))

    def expected(self, world: int) -> torch.Tensor:
        """int64 [rows, 8]: untouched zones in `world`, payload bytes zero."""
        found = self._expected.get(world)
        if found is None:
            rows = self._poison(world)
            # `seen` clears payload bytes by the same mask.
            rows[: self._partial] &= self._mask_host
            found = self._expected[world] = torch.from_numpy(rows).to(self._arena.device)
        return found

    def _poison(self, world: int) -> npt.NDArray[np.int64]:
        return poison_rows([region.dtype for region in self._regions], self._counts, world)

    def seen(self) -> torch.Tensor:
        """What the zones hold now, as `expected` has it; the next call writes over it."""
        torch.index_select(self._arena.rows, 0, self.index, out=self._seen)
        self._edges_seen.bitwise_and_(self._mask)
        return self._seen

    def write(self, expected: torch.Tensor) -> None:
        """Fill all zones with `expected`; payload bytes that share a row keep their value."""
        # Full rows are copied as they are. A cut row keeps the payload bytes it has now.
        rows = self._arena.rows
        edges = self.index[: self._partial]
        kept = rows.index_select(0, edges) & ~self._mask
        rows.index_copy_(0, self.index[self._partial :], expected[self._partial :])
        rows.index_copy_(0, edges, kept | expected[: self._partial])

    def is_shared(self, expected: torch.Tensor) -> bool:
        """Whether this is what `expected` gives to all."""
        return any(expected is each for each in self._expected.values())

    def expect(self, expected: torch.Tensor, region: Region, world: int) -> None:
        """Change `expected` to the zones of a region in `world`, and nothing else of it."""
        for part in self._parts[id(region)]:
            expected[part] = self.expected(world)[part]

    def write_zones_of(self, region: Region, expected: torch.Tensor) -> None:
        """Fill the zones of one region alone, as `write` fills all."""
        rows = self._arena.rows
        for part in self._parts[id(region)]:
            at, wanted = self.index[part], expected[part]
            if part.start < self._partial:
                wanted = rows.index_select(0, at) & ~self._mask[part] | wanted
            rows.index_copy_(0, at, wanted)

    @cached_property
    def _parts(self) -> dict[int, list[slice]]:
        """Region's `id` -> where its rows stand in `index`; a cut row stands for itself."""
        found: dict[int, list[slice]] = {}
        stops = np.cumsum(self._counts).tolist()
        for region, count, stop in zip(self._regions, self._counts.tolist(), stops, strict=True):
            found.setdefault(id(region), []).append(slice(stop - count, stop))
        return found


def _rows_between(
    bounds: npt.NDArray[np.int64],
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """([bounds[i, 0], bounds[i, 1]) for each i, one after the other; how many numbers each)."""
    first, counts = bounds[:, 0], bounds[:, 1] - bounds[:, 0]
    starts = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(first - starts, counts), counts


def _edge_masks(nbytes: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """int64 [n, 8]: 0xFF behind the payload in the row in which a payload of `nbytes` ends."""
    # Made byte by byte and then viewed as int64, so that it holds for any byte order.
    behind = np.arange(ROW_BYTES) >= (nbytes % ROW_BYTES)[:, None]
    return np.where(behind, np.uint8(0xFF), np.uint8(0)).view(np.int64)


def zone_hits_in(arena: Arena, regions: Iterable[tuple[Region, int]], stage: str) -> list[ZoneHit]:
    """Every red zone that changed, read element by element; `regions` come with their world."""
    hits: list[ZoneHit] = []
    for region, world in regions:
        clean = poison_row(region.dtype, world).view(region.dtype)[:1]
        sides = (
            ("before", region.start, region.offset),
            ("after", region.offset + region.nbytes, region.end),
        )
        for side, start, end in sides:
            hit = overrun(side, arena.bytes[start:end].cpu().view(region.dtype), clean)
            if hit is not None:
                hits.append(_zone_hit(region, hit, stage))
    return hits


def _zone_hit(region: Region, hit: Overrun, stage: str) -> ZoneHit:
    return ZoneHit(
        region=region.name,
        side=cast(Literal["before", "after"], hit.side),
        offset=hit.nearest,
        elements=hit.elements,
        reach=hit.farthest,
        written=hit.found,
        allocated_at=region.allocated_at,
        payload=region.elements,
        stage=stage,
    )
