"""A model of two layers of attention, of which the second one attends to an encoder's tokens.

Both have the same queries, and their outputs are added: the output of attention in a case with an
encoder. The encoder itself has run when a request decodes; its keys and values lie in the second
layer's KV pool. As Mllama's decoder does, the model goes without the second layer where no request
has an encoder, and takes nothing of it for a request that has none (sglang models/mllama.py,
`skip_cross_attention` and `full_text_row_masked_out_mask`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.targets.offline.demands import demand_size
from fuzzgraph.targets.sglang.attention_model import (
    FORWARD,
    AttentionModel,
    Rope,
    engine_layer,
)
from fuzzgraph.targets.sglang.capturing import captures

CROSS_LAYER = 1
"""Number of the layer that attends to encoders; that of the other one is `full_layer`."""


class CrossAttentionModel(AttentionModel):
    """The layer of `AttentionModel`, and one with `is_cross_attention` behind it."""

    def __init__(self, config: EngineConfig, device: torch.device, rope: Rope = "apart") -> None:
        super().__init__(config, device, rope)
        place: Mapping[str, Any] = {"layer_id": CROSS_LAYER, "is_cross_attention": True}
        self.cross = engine_layer(config, content_for(config), device, **place)

    @property
    def layers(self) -> tuple[Any, ...]:
        return (*super().layers, self.cross)

    def attend_heads(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, forward_batch: Any, **more: Any
    ) -> torch.Tensor:
        own = super().attend_heads(q, k, v, forward_batch, **more)
        lens: torch.Tensor = forward_batch.encoder_lens
        if not captures() and not lens.any():
            return own
        # Keys and values of an encoder are there: a decode hands over none.
        seen: torch.Tensor = self.cross(q.contiguous(), None, None, forward_batch)
        demand_size(seen, len(q), self._attended_columns, "what cross attention computed", FORWARD)
        return own + (lens != 0).reshape(-1, 1) * seen
