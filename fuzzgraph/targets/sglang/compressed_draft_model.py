"""A draft model of DeepSeek V4, whose layer compresses nothing."""

from __future__ import annotations

from typing import Any

from fuzzgraph.targets.sglang.compressed_model import CompressedModel
from fuzzgraph.targets.sglang.draft_model import DraftModel

__all__ = ["CompressedDraftModel"]


class CompressedDraftModel(DraftModel, CompressedModel):
    """The layer behind its window (sglang deepseek_v4_nextn.py, COMPRESS_RATIO_NEXTN_LAYER), and a
    draft's head."""

    def use(self, pool: Any, allocator: Any) -> None:
        """The engine gives this layer no streams (`alt_streams=None`)."""
