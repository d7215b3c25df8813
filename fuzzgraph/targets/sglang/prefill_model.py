"""A model whose parts lie where the engine's prefill runners look for them: one attention layer.

A breakable or full graph holds the transformer body, `model.model`, and runs what surrounds it
eagerly; the piecewise one compiles the body. The body is the attention of `AttentionModel`; around
it there is nothing, its output takes the place of logits.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.attention_model import AttentionModel, as_logits

__all__ = ["Body", "PrefillModel"]


class Body(torch.nn.Module):
    """[tokens, heads * v_head_dim] from token ids and positions."""

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        super().__init__()
        # The engine walks its modules and their layers; parameters it finds none.
        self.attention = AttentionModel(config, device)
        self.layers = [Stub(self_attn=Stub(attn=self.attention.layer))]

    def forward(
        self,
        input_ids: torch.Tensor,
        positions: torch.Tensor,
        forward_batch: Any,
        input_embeds: torch.Tensor | None = None,
    ) -> torch.Tensor:
        attended: torch.Tensor = self.attention.attend(input_ids, positions, forward_batch)
        return attended * 1  # something behind attention, so that the last piece holds work


class PrefillModel:
    """What the engine's model runner calls its model."""

    shared_experts_config = None

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self.model = Body(config, device)

    def forward(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any, **_: Any
    ) -> Any:
        return as_logits(self.model(input_ids, positions, forward_batch))
