"""Draft models whose layer selects its keys: DeepSeek V3.2's one by one, Qwen's in groups."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.targets.sglang.attention_model import Written
from fuzzgraph.targets.sglang.block_selecting_model import BlockSelectingModel
from fuzzgraph.targets.sglang.draft_model import DraftModel
from fuzzgraph.targets.sglang.prompted_groups_model import PromptedGroupsModel
from fuzzgraph.targets.sglang.selecting_model import SelectingModel
from fuzzgraph.world import Batch, IntArray

__all__ = ["BlockSelectingDraftModel", "GroupsDraftModel", "SelectingDraftModel"]


class SelectingDraftModel(DraftModel, SelectingModel):
    """A draft model of one layer whose queries see the keys that the engine's indexer selects."""


class BlockSelectingDraftModel(DraftModel, BlockSelectingModel):
    """The same of groups of keys."""


class GroupsDraftModel(DraftModel, PromptedGroupsModel):
    """The same, whose selection the methods of the engine's decoder layer ask for."""

    shared: Any = None
    """The engine's memory of what each request's last token before a draft has selected; None where
    each step of a draft selects for itself."""

    def past(self, batch: Batch) -> Iterator[Written]:
        """With what a draft-extend has left there."""
        yield from super().past(batch)
        if self.shared is None:
            return
        layer = self.shared.layer_slots[self.layer.layer_id]
        rows = torch.from_numpy(batch.req_pool_indices)
        indices, lens = self.shared.indices, self.shared.captured_len
        width = indices.shape[2] - self.shared.tail_width
        selected = torch.from_numpy(_selected_before(batch, self._config, width))
        yield indices, (layer, rows, slice(0, width)), selected.to(indices.dtype)
        yield lens, (layer, rows), torch.from_numpy(batch.seq_lens).to(lens.dtype)


def _selected_before(batch: Batch, config: EngineConfig, width: int) -> IntArray:
    """[rows, width] positions that the last token before a draft has selected, and -1 behind them.

    Source: sglang qsa/kernel.py, triton_expand_qsa_block_indices.
    """
    found = np.full((batch.raw_bs, width), -1)
    queries = queries_of(batch, config)
    for row, length in enumerate(batch.seq_lens.tolist()):
        seen = np.flatnonzero(queries.visible[row * config.spec_steps])
        seen = seen[seen < length]
        found[row, : len(seen)] = seen
    return found
