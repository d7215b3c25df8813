"""The targets on vLLM's V1 runner whose graphs break at attention."""

from __future__ import annotations

from typing import Any

from fuzzgraph.case import EngineConfig
from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.targets.vllm.piecewise_session import (
    BreakableSession,
    FullAndPiecewiseSession,
    PiecewiseSession,
)
from fuzzgraph.targets.vllm.attention_model import register
from fuzzgraph.targets.vllm.split_model import SplitLayer
from fuzzgraph.targets.vllm.release import engine_module, has_module, release
from fuzzgraph.targets.vllm.target import FlashAttentionTarget, TritonTarget, VllmTarget


class _InPieces(VllmTarget):
    """Batches of any kind, padded by their tokens alone."""

    def __init__(self, name: str, graphs: str) -> None:
        super().__init__(name, "prefill")
        self.session = {
            "piecewise": PiecewiseSession,
            "full_and_piecewise": FullAndPiecewiseSession,
            "breakable": BreakableSession,
        }[graphs]
        self.capabilities = self.capabilities.replace(row_mixings=("none",))
        self.model = self.session.model_class


class TritonPiecewiseTarget(_InPieces, TritonTarget):
    pass


class FlashAttentionPiecewiseTarget(_InPieces, FlashAttentionTarget):
    pass
