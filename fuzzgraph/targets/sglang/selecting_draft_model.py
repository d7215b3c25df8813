"""A draft model whose layer selects its keys, as DeepSeek V3.2's has it."""

from __future__ import annotations

from fuzzgraph.targets.sglang.draft_model import DraftModel
from fuzzgraph.targets.sglang.selecting_model import SelectingModel

__all__ = ["SelectingDraftModel"]


class SelectingDraftModel(DraftModel, SelectingModel):
    """A draft model of one layer whose queries see the keys that the engine's indexer selects."""
