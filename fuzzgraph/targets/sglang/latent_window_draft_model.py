"""A draft model whose layers are those of a Dots model."""

from __future__ import annotations

from fuzzgraph.targets.sglang.draft_model import DraftModel
from fuzzgraph.targets.sglang.latent_window_model import LatentWindowModel

__all__ = ["LatentWindowDraftModel"]


class LatentWindowDraftModel(DraftModel, LatentWindowModel):
    """Latent attention behind a window, beside that over all rows, and a draft's head."""
