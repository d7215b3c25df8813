"""What a step of the engine leaves in the memory of an indexer that selects groups of keys.

The harness writes a step's past into it before each run, so that a wrong key which a step leaves
shows in no later output. It is looked at when the step ends: keys of groups that the step has
completed, keys and positions of tokens whose group is not whole, and what else has changed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.block_index import GROUP
from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.reference.group_keys import GROUP_KEYS, GROUP_STRAYS
from fuzzgraph.world import RESERVED_ROW, RESERVED_SLOT, Batch, IntArray

__all__ = ["GroupMemory"]

Mask = npt.NDArray[np.bool_]


class GroupMemory:
    """Compressed keys of one layer, and each request's ring, in the engine's pool."""

    def __init__(self, pool: Any, layer: int, config: EngineConfig) -> None:
        self._pool, self._layer, self._config = pool, layer, config
        self._before: tuple[torch.Tensor, ...] = ()

    def begin(self) -> None:
        """Take down what is there before a step."""
        self._before = tuple(each.clone() for each in self._held())

    def outputs(self, batch: Batch) -> dict[str, torch.Tensor]:
        """What a step of `batch` has left, as `reference.group_keys` names it."""
        rows = [_row(batch, row, self._config) for row in range(batch.raw_bs)]
        width = self._held()[1].shape[-1]
        found = [torch.zeros(0, width), *map(self._keys_of, rows)]
        strays = self._changed_elsewhere(batch, rows) + sum(map(self._misplaced, rows))
        return {
            GROUP_KEYS: torch.cat(found),
            GROUP_STRAYS: torch.full((batch.raw_bs,), strays),
        }

    def _held(self) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Keys of groups by their slots; keys, and positions, of tokens by places in rings."""
        return (
            self._pool.get_qsa_compressed_k_buffer(self._layer),
            self._pool.get_qsa_key_state_buffer(self._layer),
            self._pool.qsa_rope_position_buffer,
        )

    def _keys_of(self, row: _Row) -> torch.Tensor:
        """[new tokens, columns] of each that stays its group's key, or its own."""
        compressed, ring, _ = self._held()
        new, whole, pending = row.new_tokens()
        found = torch.zeros(len(new), ring.shape[-1])
        for which, memory, at in (
            (whole, compressed, row.group_slots(new[whole])),
            (pending, ring, row.places(new[pending])),
        ):
            kept = memory[torch.from_numpy(at).to(memory.device)]
            found[torch.from_numpy(which)] = kept.float().flatten(1).cpu()
        return found

    def _misplaced(self, row: _Row) -> int:
        """New tokens whose group is not whole and of which the ring has another position."""
        new, _, pending = row.new_tokens()
        positions = self._held()[2].cpu()
        kept = positions[torch.from_numpy(row.places(new[pending]))]
        return int((kept != torch.from_numpy(new[pending])[:, None]).any(1).sum())

    def _changed_elsewhere(self, batch: Batch, rows: Sequence[_Row]) -> int:
        """Places that have changed and that no token of the batch, nor a padded row, may write."""
        pairs = zip(self._held(), self._before, strict=True)
        groups, keys, positions = ((now != before).flatten(1).any(1).cpu() for now, before in pairs)
        places = keys | positions
        own_groups = [np.array([RESERVED_SLOT]), *(row.own_groups() for row in rows)]
        own_places = [_PADDING, *(row.own_places(batch.mode) for row in rows)]
        groups[torch.from_numpy(np.concatenate(own_groups))] = False
        places[torch.from_numpy(np.concatenate(own_places))] = False
        return int(groups.sum() + places.sum())


_PADDING = RESERVED_ROW * GROUP + np.arange(GROUP)
"""Places of a ring that padded rows write."""


@dataclass(frozen=True, slots=True)
class _Row:
    """What a step does to one request's memory."""

    request_row: int
    slots: IntArray
    """Of every position that the step knows of."""
    cached: int
    """Tokens before the step."""
    computed: IntArray
    """Positions of the tokens that the engine computes: drafts that do not stay, and of a
    draft-extend those that were not accepted, among them."""
    stays: int
    """Tokens that are judged as there when it ends."""
    kept_from: int
    """The first of the older tokens whose keys later steps need."""

    def new_tokens(self) -> tuple[IntArray, Mask, Mask]:
        """(positions of new tokens, which of them are in whole groups, which stay behind the last
        one)."""
        new = np.arange(self.cached, len(self.slots))
        whole = new < self.stays // GROUP * GROUP
        return new, whole, ~whole & (new < self.stays)

    def group_slots(self, positions: IntArray) -> IntArray:
        """Where the keys of the groups of these tokens lie."""
        slots: IntArray = self.slots[positions // GROUP * GROUP] // GROUP
        return slots

    def places(self, positions: IntArray) -> IntArray:
        """Where tokens at these positions lie in the request's ring."""
        places: IntArray = self.request_row * GROUP + positions % GROUP
        return places

    def own_groups(self) -> IntArray:
        """Slots of groups that computed tokens complete."""
        firsts = self.computed[self.computed % GROUP == GROUP - 1] // GROUP * GROUP
        return self.group_slots(firsts[firsts < len(self.slots)])

    def own_places(self, mode: Mode) -> IntArray:
        """Places of rings that the step may write: not those of older tokens that are needed."""
        written = self.computed
        if mode == "prefill":  # tokens of whole groups go where padded rows do
            new, _, pending = self.new_tokens()
            written = new[pending]
        kept = np.arange(self.kept_from, self.cached)
        found: IntArray = np.setdiff1d(self.places(written), self.places(kept))
        return found


def _row(batch: Batch, row: int, config: EngineConfig) -> _Row:
    cached, width = int(batch.cached_lens[row]), int(batch.new_lens[row])
    slots, stays = batch.kv_slots.row(row), int(batch.stayed_lens[row])
    kept_from = stays
    if batch.mode == "draft_extend":
        width = config.draft_tokens
    if batch.mode == "draft":  # its tokens are there while it goes on, and for no later step
        steps = config.spec_steps
        slots = np.concatenate((slots, batch.slot_mapping[row * steps :][:steps]))
        width = 0 if config.shared_selection else steps
        kept_from, stays = cached, cached + width
    return _Row(
        request_row=int(batch.req_pool_indices[row]),
        slots=slots,
        cached=cached,
        computed=np.arange(cached, cached + width),
        stays=stays,
        kept_from=kept_from // GROUP * GROUP,
    )
