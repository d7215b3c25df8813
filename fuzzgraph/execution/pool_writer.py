"""Writes the logical state of a step into an engine's own pools, and finds writes to other places.

World A has the batch's truth in place, and signatures in all other KV and states. World B differs
from it in memory that the batch neither names nor owns. `PoolWriter` knows one session's pools;
`StepState` is one batch on them, computed once and written as often as the runs of a step need it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Literal, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import Content, content_for
from fuzzgraph.execution.pool_group import encoder_planes, pool_groups
from fuzzgraph.execution.pool_memory import (
    STATE_SIGNATURE,
    TRAP_BY_WORLD,
    PageMap,
    PoolPlane,
)
from fuzzgraph.execution.state_planes import state_planes
from fuzzgraph.memory import GuardedMemory, Image, Perturbation
from fuzzgraph.observation import ForeignWrite
from fuzzgraph.ports import Pools
from fuzzgraph.rules.writes import changed_rows
from fuzzgraph.world import RESERVED_ROW, RESERVED_SLOT, Batch, IntArray

_Copy = tuple[Callable[[torch.Tensor, torch.Tensor], None], torch.Tensor, torch.Tensor]
"""How rows are written, their numbers, and what is written."""


class PoolWriter:
    """Knows one session's pools."""

    def __init__(self, pools: Pools, config: EngineConfig, memory: GuardedMemory) -> None:
        self.memory = memory
        self.content: Content = content_for(config)
        self.groups = pool_groups(pools, config)
        self.encoder_planes = encoder_planes(pools, config)
        grouped = (plane for group in self.groups for plane in group.planes)
        self.planes = list(dict.fromkeys((*grouped, *self.encoder_planes)))
        self.encoder_in_front = pools.encoder_in_front
        self.states = [*state_planes(pools, self.content, config)]
        self._states_start_at_zero = pools.states_start_at_zero
        encoder = pools.encoder_to_token
        self.encoder_to_token = None if encoder is None else PageMap("encoder_to_token", encoder)
        maps = (*(group.page_map for group in self.groups), self.encoder_to_token)
        self._maps = [table for table in maps if table is not None]
        self._state_planes = [state.plane for state in self.states]
        self._all_planes = [*self.planes, *self._state_planes]
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
        for table in self._maps:
            table.fill_unreserved(world)

    def fill_all(self, world: int) -> None:
        """Put signatures into all KV and states beyond the reserved page, whoever owns them."""
        for plane in self._all_planes:
            plane.fill_beyond_reserved(world)

    def written_in_capture(self) -> list[ForeignWrite]:
        """Writes of warm-up and capture: what no longer holds what `fill_unowned(0)` put there."""
        found: list[ForeignWrite] = []
        for plane in self._all_planes:
            what: Literal["slot", "state"] = "state" if plane in self._state_planes else "slot"
            changed = plane.changed_since_filled()
            if what == "slot":
                changed = changed[~torch.isin(changed, self._capture_slots.to(changed.device))]
            if len(changed):
                found.append(ForeignWrite(plane.name, what, changed[:8].tolist()))
        for table in self._maps:
            rows = table.table[RESERVED_ROW + 1 :]
            changed = (rows != TRAP_BY_WORLD[0]).any(1).nonzero().flatten() + RESERVED_ROW + 1
            if len(changed):
                found.append(ForeignWrite(table.name, "row", changed[:8].tolist()))
        return found

    def keep_reserved(self, image: Image) -> None:
        """Copy the reserved page and state from `image`: padded rows may leave anything there."""
        for plane in self._all_planes:
            plane.reserved.copy_(self.memory.as_in(image, plane.reserved))

    def plane_names(self) -> Iterator[tuple[str, torch.Tensor]]:
        """The KV planes by the names under which a session hands them over."""
        for group in self.groups:
            for index, plane in enumerate(group.planes):
                yield f"{group.name}[{index}]", plane.tensor
        for index, plane in enumerate(self.encoder_planes):
            yield f"encoder_planes[{index}]", plane.tensor

    def map_names(self) -> dict[str, torch.Tensor]:
        """The page maps of the groups by the names under which a session hands them over."""
        return {table.name: table.table for group in self.groups if (table := group.page_map)}

    def state_of(self, batch: Batch) -> StepState:
        """What `batch` means in these pools."""
        return StepState(self, batch)

    def has_state(self, batch: Batch) -> npt.NDArray[np.bool_]:
        """[rows that have a state slot] whether it holds something of the request already."""
        started = self._states_start_at_zero | (batch.cached_lens > 0)
        return started[: len(batch.state_slots)]


class StepState:
    """One batch on one session's pools."""

    def __init__(self, pool_writer: PoolWriter, batch: Batch) -> None:
        self._pool_writer = pool_writer
        self._batch = batch
        # Each group with the batch as its layers see it, and the entries of its past.
        self._groups = [
            (group, seen, group.history(seen))
            for group in pool_writer.groups
            for seen in (group.seen(batch),)
        ]
        # Every copy that writes the state; made once, because a step is written for each of its
        # runs.
        copies = [*self._map_copies(), *self._encoder_copies(), *self._history_copies()]
        self._copies = self._on_device([*copies, *self._state_copies()])

    @property
    def mode(self) -> Mode:
        return self._batch.mode

    def lay(self) -> None:
        """Write the batch's truth for the step under test, and signatures over all other KV and
        states: a store to what is free, or another's, then shows whatever value it stores."""
        self._pool_writer.fill_all(0)
        self.write()

    def write(self) -> None:
        """Write the batch's page maps, its KV and states from before this step, its encoder KV."""
        for put, index, values in self._copies:
            put(index, values)

    def _on_device(self, copies: Sequence[_Copy]) -> list[_Copy]:
        """Copies of the harness's host values, from the device of the engine's memory."""
        host = [tensor for _, index, values in copies for tensor in (index, values)]
        moved = self._pool_writer.memory.crossings.to_device(host)
        return [
            (put, index, values)
            for (put, _, _), index, values in zip(copies, moved[::2], moved[1::2], strict=True)
        ]

    def _index(self, numbers: IntArray) -> torch.Tensor:
        return torch.from_numpy(numbers).to(self._pool_writer.memory.device)

    def _map_copies(self) -> Iterator[_Copy]:
        for table, slots, lens in self._page_maps():
            if len(slots):
                places = table.places(self._batch.req_pool_indices, lens)
                values = torch.from_numpy(slots).to(table.table.dtype)
                yield table.put, torch.from_numpy(places), values

    def _page_maps(self) -> Iterator[tuple[PageMap, IntArray, IntArray]]:
        """(page map, its slots, entries of each row)."""
        for group, seen, _ in self._groups:
            if group.page_map is not None:
                slots, lens = seen.map_slots, seen.seq_lens
                if self._pool_writer.encoder_in_front:
                    slots, lens = seen.encoder_slots.followed_by(slots), seen.encoder_lens + lens
                yield group.page_map, slots.values, lens
        table, batch = self._pool_writer.encoder_to_token, self._batch
        if table is not None:
            yield table, batch.encoder_slots.values, batch.encoder_lens

    @property
    def _encoder_planes(self) -> tuple[PoolPlane, ...]:
        """Where the keys and values of encoders lie."""
        return self._pool_writer.encoder_planes or self._groups[0][0].planes

    def _encoder_copies(self) -> Iterator[_Copy]:
        batch, first = self._batch, self._groups[0][0]
        if len(batch.encoder_slots.values) and self._encoder_planes:
            index = torch.from_numpy(batch.encoder_slots.values)
            values = first.content.encoder_planes(batch.encoder_tokens.values)
            for plane, rows in zip(self._encoder_planes, values, strict=True):
                yield plane.put, index, plane.bytes_of(rows)

    def _history_copies(self) -> Iterator[_Copy]:
        for group, seen, past in self._groups:
            if group.planes and len(past):
                index = torch.from_numpy(seen.kv_slots.values[past])
                values = group.content.kv_planes(
                    seen.kv_tokens.values[past], seen.kv_positions.values[past]
                )
                for plane, rows in zip(group.planes, values, strict=True):
                    yield plane.put, index, plane.bytes_of(rows)

    def _state_copies(self) -> Iterator[_Copy]:
        started = self._pool_writer.has_state(self._batch)
        for state in self._pool_writer.states:
            found = state.before(self._batch)
            mine = started[found.rows]
            if mine.any():
                known = found.values.nan_to_num(STATE_SIGNATURE[0])
                values = state.bytes_of(known)[torch.from_numpy(mine)]
                yield state.plane.put, torch.from_numpy(found.slots[mine]), values

    def dont_care(self, world: int) -> Iterator[Perturbation]:
        """Each place of the pools that the batch does not own, with its change to `world`."""
        # New tokens' slots are not owned yet: the step has to write them before it reads them.
        batch, pool_writer = self._batch, self._pool_writer
        owned: dict[PoolPlane, list[IntArray]] = {}
        for group, seen, past in self._groups:
            page = np.arange(group.config.page_size)  # the reserved one
            for plane in group.planes:
                owned.setdefault(plane, []).extend((page, seen.kv_slots.values[past]))
        for plane in self._encoder_planes:
            page = np.arange(self._groups[0][0].config.page_size)
            owned.setdefault(plane, []).extend((page, batch.encoder_slots.values))
        for plane, parts in owned.items():
            yield self._plane_change(plane, np.concatenate(parts), world, "slots")
        started = pool_writer.has_state(batch)
        for state in pool_writer.states:
            found = state.before(batch)
            states = np.append(found.slots[started[found.rows]], RESERVED_SLOT)
            yield self._plane_change(state.plane, states, world, "states")
        for table, _, lens in self._page_maps():
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
        return self._told([
            *self._slot_checks(before), *self._state_checks(before), *self._map_checks(before)
        ])  # fmt: skip

    def state_writes(self, before: Image) -> list[ForeignWrite]:
        """The same of recurrent states, and of the copies that a prefix cache keeps."""
        return self._told([*self._state_checks(before)])

    def _told(self, checks: Sequence[_Check]) -> list[ForeignWrite]:
        same = self._pool_writer.memory.crossings.same((each.now, each.expected) for each in checks)
        changed = (check for check, intact in zip(checks, same, strict=True) if not intact)
        return [write for check in changed for write in check.writes()]

    def _slot_checks(self, before: Image) -> Iterator[_Check]:
        # What each plane must hold now: as before, except for the KV of the new tokens.
        expected = {plane: self._rows_before(plane, before) for plane in self._pool_writer.planes}
        own: dict[PoolPlane, list[IntArray]] = {plane: [] for plane in expected}
        written: list[_Copy] = []
        for group, seen, _ in self._groups:
            if not group.planes:
                continue
            slots = torch.from_numpy(seen.slot_mapping)
            for plane, rows in zip(group.planes, group.written(seen), strict=True):
                into = partial(plane.put, into=expected[plane])
                written.append((into, slots, plane.bytes_of(rows)))
                own[plane].append(seen.slot_mapping)
        for put, slots, values in self._on_device(written):
            put(slots, values)
        for plane, rows in expected.items():
            mine = np.concatenate(own[plane] or [np.empty(0, dtype=np.int64)])
            yield _PlaneCheck(plane, rows, "slot", mine)

    def _state_checks(self, before: Image) -> Iterator[_Check]:
        states = self._pool_writer.states
        after = [state.after(self._batch) for state in states]
        # What is taken for what the step wrote depends on what lies there, so it is put later.
        moved = self._pool_writer.memory.crossings.to_device(
            [tensor for each in after for tensor in (torch.from_numpy(each.slots), each.values)]
        )
        for at, state in enumerate(states):
            plane, slots, values = state.plane, moved[2 * at], moved[2 * at + 1]
            expected = self._rows_before(plane, before)
            values = state.taken(plane.tensor[slots].view_as(values), values)
            plane.put(slots, state.bytes_of(values), expected)
            yield _PlaneCheck(plane, expected, "state", after[at].slots)

    def _rows_before(self, plane: PoolPlane, before: Image) -> torch.Tensor:
        """The plane's bytes before the step; what is free for padding as it is now."""
        rows = self._pool_writer.memory.as_in(before, plane.rows).clone()
        plane.put(plane.may_write, plane.get(plane.may_write), rows)
        return rows

    def _map_checks(self, before: Image) -> Iterator[_Check]:
        for table, _, _ in self._page_maps():
            yield _MapCheck(table, self._pool_writer.memory.as_in(before, table.table))


class _Check(Protocol):
    """What some memory must hold behind a step."""

    @property
    def now(self) -> torch.Tensor: ...

    @property
    def expected(self) -> torch.Tensor: ...

    def writes(self) -> Iterator[ForeignWrite]:
        """What was written, once it is known that the two differ."""
        ...


@dataclass(frozen=True, slots=True)
class _PlaneCheck:
    plane: PoolPlane
    expected: torch.Tensor
    what: Literal["slot", "state"]
    own: IntArray
    """Rows of the batch."""

    @property
    def now(self) -> torch.Tensor:
        return self.plane.rows

    def writes(self) -> Iterator[ForeignWrite]:
        # Apart: a wrong value in an own slot is another finding than a write to a stranger's.
        rows = np.array(changed_rows(self.plane.flat(self.now), self.plane.flat(self.expected)))
        mine = np.isin(rows, self.own)
        for part, owned in ((rows[~mine], False), (rows[mine], True)):
            if part.size:
                yield ForeignWrite(self.plane.name, self.what, part[:8].tolist(), own=owned)


@dataclass(frozen=True, slots=True)
class _MapCheck:
    table: PageMap
    expected: torch.Tensor

    @property
    def now(self) -> torch.Tensor:
        return self.table.table

    def writes(self) -> Iterator[ForeignWrite]:
        rows = changed_rows(self.now, self.expected)
        yield ForeignWrite(self.table.name, "row", rows[:8])
