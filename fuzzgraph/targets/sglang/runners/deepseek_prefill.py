"""Target `sglang-full-prefill-deepseek`: full prefill graphs of DeepSeek on FlashAttention 3.

As `sglang-full-prefill-mla`, but for the model: DeepSeek's decides in Python, by the batch it is
called with, whether latent rows are expanded, at once or in chunks. A graph keeps what was decided
for the batch of its capture.
"""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.ports import GraphEngine
from fuzzgraph.targets.sglang.deepseek_model import (
    DEEPSEEK,
    DeepseekLatentModel,
    DeepseekPrefillModel,
)
from fuzzgraph.targets.sglang.excuses.prefill import DEEPSEEK_PREFILL_EXCUSES
from fuzzgraph.targets.sglang.runners.latent_prefill import (
    LatentPrefillSession,
    LatentPrefillTarget,
)
from fuzzgraph.targets.sglang.runners.prefill_cuda_graph_runner import FULL

_THRESHOLDS = 8192, 1, 12, 24
"""Cached tokens from which on latent rows are expanded; the engine's default first."""


class DeepseekPrefillTarget(LatentPrefillTarget):
    """Full prefill graphs of DeepSeek on the sglang release that this process holds."""

    about = "full prefill graphs, DeepSeek on FlashAttention 3"
    excuses = DEEPSEEK_PREFILL_EXCUSES
    model_module = DEEPSEEK

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.capabilities = self.capabilities.replace(prefix_thresholds=_THRESHOLDS)

    def open_session(self, config: EngineConfig, graphs: GraphEngine) -> DeepseekPrefillSession:
        return DeepseekPrefillSession(config, graphs, FULL)


class DeepseekPrefillSession(LatentPrefillSession):
    """An opened runner on FlashAttention 3, with one layer of DeepSeek's attention."""

    model = DeepseekPrefillModel

    def plan(self) -> dict[str, object]:
        """With what decides how a batch is computed: for a graph the batch of its capture did."""
        model = self._attention
        if self.ran_eagerly and isinstance(model, DeepseekLatentModel):
            return {**super().plan(), "method": model.method}
        return {**super().plan(), "graph": self.graph_key()}
