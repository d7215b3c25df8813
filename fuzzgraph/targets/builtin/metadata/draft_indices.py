"""Page map of one draft step: the prefix from the token map, then the branch's own slots."""

from __future__ import annotations

import torch

from fuzzgraph.targets.builtin.metadata.kv_indices import KvIndices, KvView
from fuzzgraph.targets.builtin.raw_addressing import Flat


class DraftKvIndices(KvIndices):
    """One row per branch; positions past the row's prefix are looked up in `draft_cache_loc`."""

    prefix_lens: torch.Tensor
    own_slots: Flat
    steps: int

    def use_branches(self, prefix_lens: torch.Tensor, own_slots: torch.Tensor, steps: int) -> None:
        """Take prefix lengths [branches] and the slots [branches * steps] of the new tokens."""
        self.prefix_lens = prefix_lens
        self.own_slots = Flat(own_slots)
        self.steps = steps

    def load_slots(self, view: KvView) -> torch.Tensor:
        number = self.own_number(view)
        own = (number >= 0) & ~view.beyond
        place = number.add_(view.owners, alpha=self.own_stride()).long()
        place.add_(self.own_slots.base).masked_fill_(~own, self.own_slots.base)
        slots = self.own_slots.load(place).to(torch.int32)
        return torch.where(own, slots, super().load_slots(view))

    def own_number(self, view: KvView) -> torch.Tensor:
        """Number of the branch's own token that each lane lists; negative within the prefix."""
        first = view.starts + self.prefix_lens[: view.rows]
        if view.skipped is not None:
            first -= view.skipped
        return view.lanes - first.index_select(0, view.owners)

    def own_stride(self) -> int:
        """Slots of one branch in `draft_cache_loc`: one for each step."""
        return self.steps
