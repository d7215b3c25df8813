"""A model of lightning attention and one layer of softmax attention, as sglang runs Ling 2.5.

The layer is the engine's own `RadixAttention`, which the hybrid backend hands to its backend of
linear attention. What a model's projections would hand it are embeddings of tokens and positions,
whose values the harness knows (`recurrent_layers.decayed_attention`); the norm behind it is plain
torch.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.recurrent_layers import decayed_attention
from fuzzgraph.recurrent_layers.decayed_attention import (
    LINEAR_EPSILON,
    LINEAR_HEADS,
    LINEAR_OUTPUT,
    LINEAR_WIDTH,
)
from fuzzgraph.recurrent_layers.delta_recurrence import LONGEST_ROW
from fuzzgraph.targets.offline.demands import demand_lookup, demand_rows, demand_size
from fuzzgraph.targets.sglang.attention_model import FORWARD
from fuzzgraph.targets.sglang.delta_net_model import normed
from fuzzgraph.targets.sglang.hybrid_model import COMPUTED, HybridModel
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.hybrid_pools import described_bailing


class DecayedAttentionModel(HybridModel):
    """Tokens at positions, and both layers over them."""

    full_layer = 1
    describe = staticmethod(described_bailing)

    def kept_states(self, cache: Any) -> dict[str, Any]:
        return dict(linear_state=cache.temporal[self.number])

    def _make_recurrent(self, config: EngineConfig, device: torch.device) -> None:
        on_device = self.on_device
        self.token_inputs = on_device(
            decayed_attention.linear_token_inputs(content_for(config, self.number))
        )
        self.position_inputs = on_device(decayed_attention.linear_position_inputs(LONGEST_ROW))
        self.recurrent = engine_module("sglang.srt.layers.radix_attention").RadixAttention(
            num_heads=LINEAR_HEADS,
            head_dim=LINEAR_WIDTH,
            scaling=LINEAR_WIDTH**-0.5,
            num_kv_heads=LINEAR_HEADS,
            layer_id=self.place,
        )

    def _recur(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        demand_rows(positions, len(input_ids), "positions", FORWARD)
        tokens = demand_lookup(self.token_inputs, input_ids, "input_ids", FORWARD)
        places = demand_lookup(self.position_inputs, positions, "positions", FORWARD)
        heads = (tokens + places).view(len(tokens), 3, LINEAR_HEADS, LINEAR_WIDTH)
        q, k, v = (part.contiguous() for part in heads.unbind(1))
        read = self.recurrent(q, k, v, forward_batch)
        demand_size(read, len(input_ids), LINEAR_OUTPUT, COMPUTED, FORWARD)
        heads = read.reshape(-1, LINEAR_HEADS, LINEAR_WIDTH)
        return normed(heads, LINEAR_EPSILON).reshape(-1, LINEAR_OUTPUT)
