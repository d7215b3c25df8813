"""Gives requests their slots of states, as the release's request pool and prefix cache do it.

A request takes an empty ring with its slot: by the request pool, which gives out slots, or by the
pool of states, which copies a state that a prefix cache has into one. Requests with odd names come
from a prefix cache.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch

from fuzzgraph.targets.offline.patching import replaced_names
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.world import TRAPS, Batch

_CACHED = TRAPS[0]
"""Where the state of a prefix lies while it is copied: in no request's slot."""


def take_slots(batch: Batch, pool: Any) -> None:
    """Have the engine give the rows of a batch that begin their slots.

    Args:
        pool: the engine's request pool, which has that of the states.
    """
    for row in batch.rings_taken.nonzero()[0].tolist():
        slot = int(batch.state_slots[row])
        cached = batch.requests[row] % 2 == 1
        if cached:
            _copy_from_cache(pool.mamba_pool, slot)
        request = _Request(slot if cached else None, pool.device)
        if len(batch.track_slots):
            # It holds slots for kept states already, and steps are told of the next one themselves.
            kept = pool.req_index_to_mamba_ping_pong_track_buffer_mapping
            next_slot = int(batch.track_slots[row])
            request.mamba_ping_pong_track_buffer = torch.full_like(kept[0], next_slot)
        gives = Stub(alloc=lambda _, slot=slot: torch.tensor([slot], device=pool.device))
        rows = [int(batch.req_pool_indices[row])]
        with replaced_names([pool], {"free_slots": rows, "mamba_allocator": gives}):
            pool.alloc([request])


def _copy_from_cache(states: Any, slot: int) -> None:
    """The slot's state, as the step finds it, lies elsewhere and is copied back by the engine."""
    source, target = torch.tensor([_CACHED]), torch.tensor([slot])
    swapped = [*_by_slot(states)]
    for memory in swapped:
        memory[:, [_CACHED, slot]] = memory[:, [slot, _CACHED]]
    nobodys = [memory[:, slot].clone() for memory in swapped]
    states.copy_from(source.to(states.device), target.to(states.device))
    for memory, left in zip(swapped, nobodys, strict=True):
        memory[:, _CACHED] = left


def _by_slot(states: Any) -> Iterator[torch.Tensor]:
    """[layers, slots, ...]: states and inputs of convolutions."""
    yield states.mamba_cache.temporal
    yield from states.mamba_cache.conv


class _Request:
    """What of a request the pools read and write, by itself and, since 0.5.23, as its `kv`."""

    inflight_middle_chunks = 0

    def __init__(self, slot: int | None, device: str) -> None:
        self.req_pool_idx: int | None = None
        self.mamba_pool_idx = None if slot is None else torch.tensor(slot, device=device)
        self.mamba_needs_clear = False
        self.mamba_ping_pong_track_buffer: torch.Tensor | None = None

    @property
    def kv(self) -> _Request:
        return self

    @property
    def holds_kv(self) -> bool:
        return self.req_pool_idx is not None

    @property
    def holds_mamba(self) -> bool:
        return self.mamba_pool_idx is not None
