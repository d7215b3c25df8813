"""Lays the logical truth of a step into an engine's own pools, and guards what it does not own.

World A is what is really there, leftovers of finished requests included. World B differs from it
in memory that the batch neither names nor owns; `dont_care` lists that memory, place by place.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import Content, content_for
from fuzzgraph.memory import GuardedMemory, Perturbation
from fuzzgraph.observation import ForeignWrite
from fuzzgraph.ports import Pools
from fuzzgraph.world import RESERVED_ROW, RESERVED_SLOT, TRAPS, Batch, IntArray

__all__ = ["Painter"]

# Finite signatures of KV that belongs to nobody, per world. Keys stay small so that their softmax
# weight never rounds away; values are far from anything the model computes.
_KEY_SIGNATURE = (0.125, 0.1875)
_VALUE_SIGNATURE = (5.0, -6.0)
_LATENT_SIGNATURE = (1.5, -1.75)
_STATE_SIGNATURE = (9.0, -11.0)


def _as_bytes(plane: torch.Tensor) -> torch.Tensor:
    """[rows, bytes per row] view: copies and comparisons then work for every dtype, bit for bit."""
    return plane.reshape(len(plane), math.prod(plane.shape[1:])).view(torch.uint8)


class _Plane:
    """One tensor of the pools, row by row."""

    def __init__(self, name: str, tensor: torch.Tensor, signature: tuple[float, float]) -> None:
        self.name = name
        self.tensor = tensor
        self.rows = _as_bytes(tensor)
        shape = (1, *tensor.shape[1:])
        self.filler = [
            _as_bytes(torch.full(shape, value, device=tensor.device).to(tensor.dtype))
            for value in signature
        ]

    def fill(self, rows: IntArray, world: int) -> None:
        index = torch.from_numpy(rows).to(self.rows.device)
        self.rows.index_copy_(0, index, self.filler[world].expand(len(rows), -1))

    def put(self, rows: IntArray, values: torch.Tensor) -> None:
        self.rows.index_copy_(0, torch.from_numpy(rows).to(self.rows.device), _as_bytes(values))


class Painter:
    """Writes worlds into one session's pools."""

    def __init__(self, pools: Pools, config: EngineConfig, memory: GuardedMemory) -> None:
        self._pools = pools
        self._memory = memory
        self._content: Content = content_for(config)
        self._planes = [
            _Plane(f"kv_planes[{i}]", plane, self._signature(i, len(pools.kv_planes)))
            for i, plane in enumerate(pools.kv_planes)
        ]
        self._state = (
            None if pools.state is None else _Plane("state", pools.state, _STATE_SIGNATURE)
        )
        self._maps = {
            name: (table, table.view(-1))
            for name, table in (
                ("req_to_token", pools.req_to_token),
                ("encoder_to_token", pools.encoder_to_token),
            )
            if table is not None
        }

    @staticmethod
    def _signature(index: int, count: int) -> tuple[float, float]:
        if count == 1:
            return _LATENT_SIGNATURE
        return _KEY_SIGNATURE if index == 0 else _VALUE_SIGNATURE

    def use_region_names(self) -> None:
        """Call the places by the engine's own names, once the regions have them."""
        for plane in (*self._planes, *([self._state] if self._state else [])):
            region = self._memory.region_of(plane.tensor)
            if region is not None and region.name:
                plane.name = region.name

    def fill_unowned(self, world: int = 0) -> None:
        """Put signatures and traps everywhere except in the reserved row, slot and state."""
        for plane in (*self._planes, *([self._state] if self._state else [])):
            plane.fill(np.arange(RESERVED_SLOT + 1, len(plane.rows)), world)
        for table, _ in self._maps.values():
            table[RESERVED_ROW + 1 :] = TRAPS[world]

    def lay(self, batch: Batch) -> None:
        """Write the batch's history: page maps, KV before this step, states, encoder KV."""
        self._map("req_to_token", batch.req_pool_indices, batch.kv_slots.values, batch.seq_lens)
        if batch.encoder_slots.values.size:
            self._map(
                "encoder_to_token",
                batch.req_pool_indices,
                batch.encoder_slots.values,
                batch.encoder_lens,
            )
            planes = self._content.encoder_planes(batch.encoder_tokens.values)
            for plane, values in zip(self._planes, planes, strict=True):
                plane.put(batch.encoder_slots.values, values)
        if self._planes:
            past = _history(batch)
            planes = self._content.kv_planes(
                batch.kv_tokens.values[past], batch.kv_positions.values[past]
            )
            for plane, values in zip(self._planes, planes, strict=True):
                plane.put(batch.kv_slots.values[past], values)
        if self._state is not None and batch.raw_bs:
            self._state.put(batch.state_slots, self._content.state_rows(batch))

    def _map(self, name: str, rows: IntArray, slots: IntArray, lens: IntArray) -> None:
        if name not in self._maps or not len(slots):
            return
        table, flat = self._maps[name]
        places = torch.from_numpy(_flat_places(rows, lens, table.shape[1]))
        values = torch.from_numpy(slots).to(table.dtype)
        flat.index_copy_(0, places.to(flat.device), values.to(flat.device))

    def dont_care(self, batch: Batch, world: int = 1) -> Iterator[Perturbation]:
        """Every place of the pools that the batch does not own, each with its change to `world`."""
        owned_slots = np.concatenate(
            (
                [RESERVED_SLOT],
                batch.kv_slots.values[_history(batch)],
                batch.encoder_slots.values,
            )
        )
        for plane in self._planes:
            yield _plane_change(plane, owned_slots, world)
        if self._state is not None:
            yield _plane_change(
                self._state, np.concatenate(([RESERVED_SLOT], batch.state_slots)), world
            )
        lens = {"req_to_token": batch.seq_lens, "encoder_to_token": batch.encoder_lens}
        for name, (table, flat) in self._maps.items():
            yield _map_change(name, table, flat, batch.req_pool_indices, lens[name], world)

    def keep_reserved(self, image: torch.Tensor) -> None:
        """Bring the reserved slot and state from `image`: padded rows may leave anything there."""
        for plane in (*self._planes, *([self._state] if self._state else [])):
            plane.rows[RESERVED_SLOT].copy_(
                _as_bytes(self._memory.as_in(image, plane.tensor))[RESERVED_SLOT]
            )

    def foreign_writes(self, batch: Batch, before: torch.Tensor) -> list[ForeignWrite]:
        """What changed since `before` although the batch does not own it, or was written wrong."""
        found: list[ForeignWrite] = []
        new_kv = self._new_kv(batch) if self._planes else ()
        for number, plane in enumerate(self._planes):
            expected = _as_bytes(self._memory.as_in(before, plane.tensor)).clone()
            slots = torch.from_numpy(batch.slot_mapping).to(expected.device)
            expected[RESERVED_SLOT] = plane.rows[RESERVED_SLOT]
            truth = _as_bytes(new_kv[number]) if new_kv else plane.rows[slots]
            expected.index_copy_(0, slots, truth)
            found += _changed_rows(plane, expected, "slot", batch.slot_mapping)
        if self._state is not None:
            expected = _as_bytes(self._memory.as_in(before, self._state.tensor)).clone()
            own = torch.from_numpy(np.append(batch.state_slots, RESERVED_SLOT)).to(expected.device)
            expected[own] = self._state.rows[own]
            found += _changed_rows(self._state, expected, "state", batch.state_slots)
        for name, (table, _) in self._maps.items():
            if not torch.equal(table, was := self._memory.as_in(before, table)):
                rows = (table != was).any(1).nonzero().flatten().tolist()
                found.append(ForeignWrite(name, "row", rows[:8]))
        return found

    def _new_kv(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        if batch.mode == "draft":  # tokens of later draft steps follow from the model's outputs
            return ()
        return self._content.kv_planes(batch.input_ids, batch.positions)


def _history(batch: Batch) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Which entries of `kv_slots` were there before this step."""
    offsets = batch.kv_slots.offsets
    place = np.arange(len(batch.kv_slots.values)) - np.repeat(offsets[:-1], np.diff(offsets))
    return place < np.repeat(batch.cached_lens, np.diff(offsets))


def _flat_places(rows: IntArray, lens: IntArray, width: int) -> IntArray:
    starts = np.cumsum(lens) - lens
    columns = np.arange(int(lens.sum())) - np.repeat(starts, lens)
    return np.repeat(rows, lens) * width + columns


def _plane_change(plane: _Plane, owned: IntArray, world: int) -> Perturbation:
    mask = np.ones(len(plane.rows), dtype=bool)
    mask[owned] = False
    rows = np.flatnonzero(mask)
    return Perturbation(
        f"{plane.name} (slots the batch does not own)", lambda: plane.fill(rows, world)
    )


def _map_change(
    name: str,
    table: torch.Tensor,
    flat: torch.Tensor,
    rows: IntArray,
    lens: IntArray,
    world: int,
) -> Perturbation:
    mask = np.ones(flat.numel(), dtype=bool)
    mask[: table.shape[1]] = False  # the reserved row
    mask[_flat_places(rows, lens, table.shape[1])] = False
    places = torch.from_numpy(np.flatnonzero(mask)).to(flat.device)

    def change() -> None:
        flat.index_fill_(0, places, TRAPS[world])

    return Perturbation(f"{name} (rows of others, or beyond the sequence)", change)


def _changed_rows(
    plane: _Plane, expected: torch.Tensor, what: str, own: IntArray
) -> list[ForeignWrite]:
    if torch.equal(plane.rows, expected):
        return []
    rows = (plane.rows != expected).any(1).nonzero().flatten().cpu().numpy()
    mine = np.isin(rows, own)
    return [
        ForeignWrite(plane.name, what, part[:8].tolist(), own=owned)  # type: ignore[arg-type]
        for part, owned in ((rows[~mine], False), (rows[mine], True))
        if part.size
    ]
