"""Writes the logical state of a step into an engine's own pools, and finds writes to other places.

World A is what is really there, leftovers of finished requests included. World B differs from it
in memory that the batch neither names nor owns. `PoolWriter` knows one session's pools; `StepState`
is one batch on them, computed once and written as often as the runs of a step need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Literal

import numpy as np
import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import Content, content_for
from fuzzgraph.execution.pool_memory import (
    STATE_SIGNATURE,
    TRAP_BY_WORLD,
    PageMap,
    PoolPlane,
    kv_signature,
    page_rows,
)
from fuzzgraph.memory import GuardedMemory, Image, Perturbation
from fuzzgraph.observation import ForeignWrite
from fuzzgraph.ports import Pools
from fuzzgraph.reference import new_tokens
from fuzzgraph.rules.writes import changed_rows
from fuzzgraph.world import RESERVED_ROW, RESERVED_SLOT, Batch, IntArray

_Copy = tuple[Callable[[torch.Tensor, torch.Tensor], None], torch.Tensor, torch.Tensor]


class PoolWriter:
    """Knows one session's pools."""

    def __init__(self, pools: Pools, config: EngineConfig, memory: GuardedMemory) -> None:
        self.memory = memory
        self.config = config
        self.content: Content = content_for(config)
        self.planes = [
            PoolPlane(
                f"kv_planes[{i}]",
                plane,
                kv_signature(i, len(pools.kv_planes)),
                reserved_rows=config.page_size,
                page_rows=page_rows(plane, i, config),
            )
            for i, plane in enumerate(pools.kv_planes)
        ]
        self.state = (
            None if pools.state is None else PoolPlane("state", pools.state, STATE_SIGNATURE)
        )
        self.req_to_token = _map("req_to_token", pools.req_to_token)
        self.encoder_to_token = _map("encoder_to_token", pools.encoder_to_token)
        self._all_planes = [*self.planes, *([self.state] if self.state else [])]
        self._capture_slots = torch.tensor(pools.capture_slots, dtype=torch.int64)

    def use_region_names(self) -> None:
        """Call the planes what the engine calls them, once their regions have names."""
        for plane in self._all_planes:
            region = self.memory.region_of(plane.tensor)
            if region is not None and region.name:
                plane.name = region.name

    def fill_unowned(self, world: int) -> None:
        """Put signatures and traps everywhere except in the reserved row, slot and state."""
        for plane in self._all_planes:
            plane.fill_unreserved(world)
        for table in (self.req_to_token, self.encoder_to_token):
            if table is not None:
                table.fill_unreserved(world)

    def written_in_capture(self) -> list[ForeignWrite]:
        """Writes of warm-up and capture: what no longer holds what `fill_unowned(0)` put there."""
        found: list[ForeignWrite] = []
        for plane in self._all_planes:
            what: Literal["slot", "state"] = "state" if plane is self.state else "slot"
            changed = plane.changed_since_filled()
            if what == "slot":
                changed = changed[~torch.isin(changed, self._capture_slots.to(changed.device))]
            if len(changed):
                found.append(ForeignWrite(plane.name, what, changed[:8].tolist()))
        for table in (self.req_to_token, self.encoder_to_token):
            if table is not None:
                rows = table.table[RESERVED_ROW + 1 :]
                changed = (rows != TRAP_BY_WORLD[0]).any(1).nonzero().flatten() + RESERVED_ROW + 1
                if len(changed):
                    found.append(ForeignWrite(table.name, "row", changed[:8].tolist()))
        return found

    def keep_reserved(self, image: Image) -> None:
        """Copy the reserved page and state from `image`: padded rows may leave anything there."""
        for plane in self._all_planes:
            plane.reserved.copy_(self.memory.as_in(image, plane.reserved))

    def state_of(self, batch: Batch) -> StepState:
        """What `batch` means in these pools."""
        return StepState(self, batch)


def _map(name: str, table: torch.Tensor | None) -> PageMap | None:
    return None if table is None else PageMap(name, table)


class StepState:
    """One batch on one session's pools."""

    def __init__(self, pool_writer: PoolWriter, batch: Batch) -> None:
        self._pool_writer = pool_writer
        self._batch = batch
        self._past = _history(batch)
        # (how it is written, row numbers, rows) of every copy that writes the state; made once,
        # because a step is written for each of its runs.
        self._copies = [*self._map_copies(), *self._encoder_copies(), *self._history_copies()]
        if pool_writer.state is not None and batch.raw_bs:
            slots = self._index(batch.state_slots)
            states = self._on_device(
                pool_writer.state.bytes_of(pool_writer.content.state_rows(batch))
            )
            self._copies.append((pool_writer.state.put, slots, states))

    @property
    def mode(self) -> Mode:
        return self._batch.mode

    def write(self) -> None:
        """Write the batch's page maps, its KV and states from before this step, its encoder KV."""
        for put, index, values in self._copies:
            put(index, values)

    def _index(self, numbers: IntArray) -> torch.Tensor:
        return self._on_device(torch.from_numpy(numbers))

    def _on_device(self, values: torch.Tensor) -> torch.Tensor:
        """The harness's host values on the device of the engine's memory."""
        return values.to(self._pool_writer.memory.device)

    def _map_copies(self) -> Iterator[_Copy]:
        batch, pool_writer = self._batch, self._pool_writer
        for table, slots, lens in (
            (pool_writer.req_to_token, batch.kv_slots.values, batch.seq_lens),
            (pool_writer.encoder_to_token, batch.encoder_slots.values, batch.encoder_lens),
        ):
            if table is not None and len(slots):
                places = table.places(batch.req_pool_indices, lens)
                values = self._index(slots).to(table.table.dtype)
                yield table.put, self._index(places), values

    def _encoder_copies(self) -> Iterator[_Copy]:
        batch, pool_writer = self._batch, self._pool_writer
        if len(batch.encoder_slots.values) and pool_writer.planes:
            index = self._index(batch.encoder_slots.values)
            values = pool_writer.content.encoder_planes(batch.encoder_tokens.values)
            for plane, rows in zip(pool_writer.planes, values, strict=True):
                yield plane.put, index, self._on_device(plane.bytes_of(rows))

    def _history_copies(self) -> Iterator[_Copy]:
        batch, pool_writer = self._batch, self._pool_writer
        if pool_writer.planes and len(self._past):
            index = self._index(batch.kv_slots.values[self._past])
            values = pool_writer.content.kv_planes(
                batch.kv_tokens.values[self._past], batch.kv_positions.values[self._past]
            )
            for plane, rows in zip(pool_writer.planes, values, strict=True):
                yield plane.put, index, self._on_device(plane.bytes_of(rows))

    def dont_care(self, world: int) -> Iterator[Perturbation]:
        """Each place of the pools that the batch does not own, with its change to `world`."""
        # New tokens' slots are not owned yet: the step has to write them before it reads them.
        batch, pool_writer = self._batch, self._pool_writer
        past = batch.kv_slots.values[self._past]
        page = np.arange(pool_writer.config.page_size)  # the reserved one
        owned = np.concatenate((page, past, batch.encoder_slots.values))
        for plane in pool_writer.planes:
            yield self._plane_change(plane, owned, world, "slots")
        if pool_writer.state is not None:
            owned = np.append(batch.state_slots, RESERVED_SLOT)
            yield self._plane_change(pool_writer.state, owned, world, "states")
        for table, lens in (
            (pool_writer.req_to_token, batch.seq_lens),
            (pool_writer.encoder_to_token, batch.encoder_lens),
        ):
            if table is not None:
                yield self._map_change(table, lens, world)

    def _plane_change(
        self, plane: PoolPlane, owned: IntArray, world: int, what: str
    ) -> Perturbation:
        mask = np.ones(plane.count, dtype=bool)
        mask[owned] = False
        rows = self._index(np.flatnonzero(mask))
        return Perturbation(
            f"{plane.name} ({what} the batch does not own)", lambda: plane.fill(rows, world)
        )

    def _map_change(self, table: PageMap, lens: IntArray, world: int) -> Perturbation:
        mask = np.ones(table.flat.numel(), dtype=bool)
        mask[: table.width] = False  # the reserved row
        mask[table.places(self._batch.req_pool_indices, lens)] = False
        places = self._index(np.flatnonzero(mask))

        def change() -> None:
            table.flat.index_fill_(0, places, TRAP_BY_WORLD[world])

        return Perturbation(f"{table.name} (rows of others, or beyond the sequence)", change)

    def foreign_writes(self, before: Image) -> list[ForeignWrite]:
        """Places that changed since `before` and are not the batch's, or hold wrong values."""
        return [*self._slot_writes(before), *self._state_writes(before), *self._map_writes(before)]

    def _slot_writes(self, before: Image) -> Iterator[ForeignWrite]:
        batch, pool_writer = self._batch, self._pool_writer
        if not pool_writer.planes:
            return
        # What the whole plane must hold now: as before, except for the KV of the new tokens.
        new_kv = pool_writer.content.kv_planes(*new_tokens(batch, pool_writer.config))
        slots = self._index(batch.slot_mapping)
        for plane, rows in zip(pool_writer.planes, new_kv, strict=True):
            expected = self._rows_before(plane, before)
            plane.put(slots, self._on_device(plane.bytes_of(rows)), expected)
            yield from _changed_rows(plane, expected, "slot", batch.slot_mapping)

    def _state_writes(self, before: Image) -> Iterator[ForeignWrite]:
        plane = self._pool_writer.state
        if plane is not None:
            expected = self._rows_before(plane, before)
            own = self._index(self._batch.state_slots)
            after = self._pool_writer.content.state_rows(self._batch, after=True)
            plane.put(own, self._on_device(plane.bytes_of(after)), expected)
            yield from _changed_rows(plane, expected, "state", self._batch.state_slots)

    def _rows_before(self, plane: PoolPlane, before: Image) -> torch.Tensor:
        """The plane's bytes before the step; the reserved slot, free for padding, as it is now."""
        rows = self._pool_writer.memory.as_in(before, plane.rows).clone()
        now = plane.reserved[:1]
        plane.put(self._index(np.array([RESERVED_SLOT])), now, rows)
        return rows

    def _map_writes(self, before: Image) -> Iterator[ForeignWrite]:
        for table in (self._pool_writer.req_to_token, self._pool_writer.encoder_to_token):
            if table is None:
                continue
            was = self._pool_writer.memory.as_in(before, table.table)
            if not torch.equal(table.table, was):
                yield ForeignWrite(table.name, "row", changed_rows(table.table, was)[:8])


def _history(batch: Batch) -> IntArray:
    """Indices into `kv_slots` of the tokens that were there before this step."""
    offsets = batch.kv_slots.offsets
    lens = np.diff(offsets)
    # Cached tokens come first in each row: an entry belongs to the past up to its row's end there.
    ends = np.repeat(offsets[:-1] + batch.cached_lens, lens)
    return np.flatnonzero(np.arange(len(batch.kv_slots.values)) < ends)


def _changed_rows(
    plane: PoolPlane, expected: torch.Tensor, what: Literal["slot", "state"], own: IntArray
) -> Iterator[ForeignWrite]:
    if torch.equal(plane.rows, expected):
        return
    # Apart: a wrong value in an own slot is another finding than a write to a stranger's.
    rows = np.array(changed_rows(plane.flat(plane.rows), plane.flat(expected)))
    mine = np.isin(rows, own)
    for part, owned in ((rows[~mine], False), (rows[mine], True)):
        if part.size:
            yield ForeignWrite(plane.name, what, part[:8].tolist(), own=owned)
