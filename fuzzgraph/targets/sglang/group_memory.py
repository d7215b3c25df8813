"""What a step of the engine leaves in the memory of an indexer that selects groups of keys.

The harness writes a step's past into it before each run, so that a wrong key which a step leaves
shows in no later output. It is looked at when the step ends: keys of groups that the step has
completed, keys and positions of tokens whose group is not whole, and what else has changed.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.block_index import GROUP
from fuzzgraph.case import EngineConfig
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
        rows = range(batch.raw_bs)
        width = self._held()[1].shape[-1]
        found = [torch.zeros(0, width), *(self._keys_of(batch, row) for row in rows)]
        strays = self._changed_elsewhere(batch) + sum(self._misplaced(batch, row) for row in rows)
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

    def _keys_of(self, batch: Batch, row: int) -> torch.Tensor:
        """[new tokens, columns] of each that stays its group's key, or its own."""
        compressed, ring, _ = self._held()
        new, whole, pending = _new_tokens(batch, row)
        found = torch.zeros(len(new), ring.shape[-1])
        for which, memory, at in (
            (whole, compressed, _group_slots(batch, row, new[whole])),
            (pending, ring, _places(batch, row, new[pending])),
        ):
            kept = memory[torch.from_numpy(at).to(memory.device)]
            found[torch.from_numpy(which)] = kept.float().flatten(1).cpu()
        return found

    def _misplaced(self, batch: Batch, row: int) -> int:
        """New tokens whose group is not whole and of which the ring has another position."""
        new, _, pending = _new_tokens(batch, row)
        positions = self._held()[2].cpu()
        kept = positions[torch.from_numpy(_places(batch, row, new[pending]))]
        return int((kept != torch.from_numpy(new[pending])[:, None]).any(1).sum())

    def _changed_elsewhere(self, batch: Batch) -> int:
        """Places that have changed and that no token of the batch, nor a padded row, may write."""
        pairs = zip(self._held(), self._before, strict=True)
        groups, keys, positions = ((now != before).flatten(1).any(1).cpu() for now, before in pairs)
        places = keys | positions
        groups[torch.from_numpy(self._own_groups(batch))] = False
        places[torch.from_numpy(self._own_places(batch))] = False
        return int(groups.sum() + places.sum())

    def _computed(self, batch: Batch, row: int) -> IntArray:
        """Positions of a row's tokens that the engine computes: drafts that do not stay, and of a
        draft-extend those that were not accepted, among them."""
        start = int(batch.cached_lens[row])
        width = int(batch.new_lens[row])
        if batch.mode == "draft_extend":
            width = self._config.draft_tokens
        return np.arange(start, start + width)

    def _own_groups(self, batch: Batch) -> IntArray:
        """Slots of groups that such tokens complete."""
        found = [np.array([RESERVED_SLOT])]
        for row, length in enumerate(batch.seq_lens.tolist()):
            computed = self._computed(batch, row)
            firsts = computed[computed % GROUP == GROUP - 1] // GROUP * GROUP
            found.append(_group_slots(batch, row, firsts[firsts < length]))
        return np.concatenate(found)

    def _own_places(self, batch: Batch) -> IntArray:
        """Places of rings that the step may write: not those of older tokens whose group is not
        whole behind it."""
        found = [RESERVED_ROW * GROUP + np.arange(GROUP)]
        for row, cached in enumerate(batch.cached_lens.tolist()):
            written = self._computed(batch, row)
            if batch.mode == "prefill":  # tokens of whole groups go where padded rows do
                new, _, pending = _new_tokens(batch, row)
                written = new[pending]
            kept = np.arange(int(batch.stayed_lens[row]) // GROUP * GROUP, cached)
            found.append(np.setdiff1d(_places(batch, row, written), _places(batch, row, kept)))
        return np.concatenate(found)


def _new_tokens(batch: Batch, row: int) -> tuple[IntArray, Mask, Mask]:
    """(positions of a row's new tokens, which of them are in whole groups, which stay behind the
    last one)."""
    new = np.arange(int(batch.cached_lens[row]), int(batch.seq_lens[row]))
    stays = int(batch.stayed_lens[row])
    whole = new < stays // GROUP * GROUP
    return new, whole, ~whole & (new < stays)


def _group_slots(batch: Batch, row: int, positions: IntArray) -> IntArray:
    """Where the keys of the groups of these tokens lie."""
    slots: IntArray = batch.kv_slots.row(row)[positions // GROUP * GROUP] // GROUP
    return slots


def _places(batch: Batch, row: int, positions: IntArray) -> IntArray:
    """Where tokens at these positions lie in the request's ring."""
    places: IntArray = batch.req_pool_indices[row] * GROUP + positions % GROUP
    return places
