"""Draft models whose layer selects its keys: DeepSeek V3.2's one by one, Qwen's in groups."""

from __future__ import annotations

from fuzzgraph.targets.sglang.block_selecting_model import BlockSelectingModel
from fuzzgraph.targets.sglang.draft_model import DraftModel
from fuzzgraph.targets.sglang.selecting_model import SelectingModel

__all__ = ["BlockSelectingDraftModel", "SelectingDraftModel"]


class SelectingDraftModel(DraftModel, SelectingModel):
    """A draft model of one layer whose queries see the keys that the engine's indexer selects."""


class BlockSelectingDraftModel(DraftModel, BlockSelectingModel):
    """The same of groups of keys."""
