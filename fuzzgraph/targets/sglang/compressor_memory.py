"""What a step of the engine leaves in the memory of DeepSeek V4's compressor.

The harness writes a step's past into it before each run, so that nothing of an earlier step is read
in a later one. What a step leaves is therefore looked at when it ends: the states that later steps
need, and writes to places that no token of the batch has.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.compressor_layer import (
    INDEX_STATES,
    STATES,
    STRAYS,
    compression_ratio,
    compressor_shape,
    kept_rows,
    promised_of_compressor,
)
from fuzzgraph.kernel_models.fp8 import pages_of_rows
from fuzzgraph.kernel_models.mxfp4 import fp4_pages
from fuzzgraph.targets.sglang.stubs.compressed_pool import state_places
from fuzzgraph.world import RESERVED_ROW, RESERVED_SLOT, Batch, IntArray

_GROUPS_OF_PADDING = 4
"""The least groups for which padded rows leave states; kernels of smaller ones leave those rows
out (sglang c2.cuh)."""


class CompressorMemory:
    """The memory of one layer's compressor, and of its indexer's, in the engine's pool."""

    def __init__(self, pool: Any, config: EngineConfig) -> None:
        self._pool, self._config = pool, config
        self._ratio = compression_ratio(config)
        self._before: dict[str, torch.Tensor] = {}

    def begin(self) -> None:
        """Take down what is there before a step."""
        if self._ratio:
            self._before = {name: held.clone() for name, held in self._held().items()}

    def outputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What a step of `batch` has left, as `compressor_layer` names it."""
        if not self._ratio or not batch.raw_bs:
            return {}
        held = self._held()
        strays = torch.full((batch.raw_bs,), self._strays(batch, held))
        shown = {STATES: "states", INDEX_STATES: "index_states"}
        kept = {
            output: self._kept(batch, output, held[name])
            for output, name in shown.items()
            if output in promised_of_compressor(self._config)
        }
        return {**kept, STRAYS: strays}

    def _held(self) -> Mapping[str, torch.Tensor]:
        """Tensors by name, each with a row for each state or each slot of compressed keys."""
        pool, promised = self._pool, promised_of_compressor(self._config)
        held = {"compressed": pool.compressed}
        if STATES in promised:
            held["states"] = pool.states
        if INDEX_STATES in promised:
            held["index_states"] = pool.index_states
        if self._ratio in pool.index_pools:
            size = pool.index_pools[self._ratio].page_size
            parts = pages_of_rows if self._ratio == 4 else fp4_pages
            rows, scales = parts(pool.index, size)
            held["index"] = rows.flatten(0, 1)
            held["index_scales"] = scales.flatten(0, 1).view(len(held["index"]), -1)
        return held

    def _kept(self, batch: Batch, output: str, states: torch.Tensor) -> torch.Tensor:
        found = states.new_zeros((batch.raw_bs, *compressor_shape(output, self._config)))
        for row, positions in kept_rows(batch, self._ratio):
            places = self._places(batch, row, positions)
            found[row, : len(positions)] = states[torch.from_numpy(places).to(states.device)]
        return found

    def _places(self, batch: Batch, row: int, positions: IntArray) -> IntArray:
        requests = np.full_like(positions, batch.req_pool_indices[row])
        slots = batch.kv_slots.row(row)[positions]
        return state_places(self._pool, self._ratio, requests, slots, positions)

    def _strays(self, batch: Batch, held: Mapping[str, torch.Tensor]) -> int:
        """Rows that have changed and are neither a new token's nor a padded row's."""
        states, slots = [self._padded_states()], [np.array([RESERVED_SLOT])]
        ends = zip(batch.cached_lens.tolist(), batch.seq_lens.tolist(), strict=True)
        for row, (start, stop) in enumerate(ends):
            new = np.arange(start, stop)
            if self._ratio > 1:
                states.append(self._places(batch, row, new))
            slots.append(batch.kv_slots.row(row)[new[(new + 1) % self._ratio == 0]] // self._ratio)
        own = {"states": np.concatenate(states), "slots": np.concatenate(slots)}
        count = 0
        for name, now in held.items():
            changed = (now != self._before[name]).flatten(1).any(1)
            mine = own["states" if name.endswith("states") else "slots"]
            changed[torch.from_numpy(mine).to(changed.device)] = False
            count += int(changed.sum())
        return count

    def _padded_states(self) -> IntArray:
        """Where states of padded rows may lie, whatever their lengths."""
        if self._ratio < _GROUPS_OF_PADDING:
            return np.empty(0, dtype=np.int64)
        ring = self._pool.get_ring_size(compress_ratio=self._ratio)
        places = np.arange(ring)
        row, slot = (np.full_like(places, each) for each in (RESERVED_ROW, RESERVED_SLOT))
        return state_places(self._pool, self._ratio, row, slot, places)
