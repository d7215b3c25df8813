"""A model of KDA and one layer of attention, as sglang runs Kimi Linear.

The recurrent layer is the engine's own `RadixLinearAttention`. What a model's projections would
hand it are embeddings of tokens and positions, whose values the harness knows
(`recurrent_layers.channel_decay`); the norm behind it is plain torch, and its gate is left out.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.recurrent_layers import channel_decay
from fuzzgraph.recurrent_layers.channel_decay import CHANNEL_EPSILON
from fuzzgraph.recurrent_layers.delta_recurrence import LONGEST_ROW
from fuzzgraph.recurrent_layers.linear_heads import LinearHeads
from fuzzgraph.targets.offline.demands import demand_lookup, demand_rows, demand_size
from fuzzgraph.targets.sglang.attention_model import FORWARD
from fuzzgraph.targets.sglang.delta_net_model import LAYER, head_arguments, normed_heads
from fuzzgraph.targets.sglang.hybrid_model import COMPUTED, HybridModel
from fuzzgraph.targets.sglang.release import engine_module, is_before
from fuzzgraph.targets.sglang.stubs.hybrid_pools import described_kimi


class ChannelDecayModel(HybridModel):
    """Tokens at positions, and both layers over them."""

    full_layer = 1
    describe = staticmethod(described_kimi)
    flat_gates = False
    """Whether prompts hand over gates as rows, as those of GLM-5.3 do, not by heads as Kimi's."""

    @property
    def heads(self) -> LinearHeads:
        """Of the recurrent layer."""
        return channel_decay.channel_heads(self._config)

    def kept_states(self, cache: Any) -> dict[str, Any]:
        return dict(
            channel_state=cache.temporal[self.number], channel_conv_state=cache.conv[0][self.number]
        )

    def _make_recurrent(self, config: EngineConfig, device: torch.device) -> None:
        on_device, of_model, heads = self.on_device, self.of_model, self.heads
        content = content_for(config, self.number)
        self.token_inputs = of_model(channel_decay.channel_token_inputs(content))
        self.position_inputs = of_model(channel_decay.channel_position_inputs(LONGEST_ROW, heads))
        self.gates = of_model(channel_decay.channel_gates(content))
        self.betas = of_model(channel_decay.channel_betas())
        self.recurrent = engine_module(LAYER).RadixLinearAttention(
            layer_id=self.place,
            **head_arguments(heads),
            conv_weights=of_model(channel_decay.channel_conv_weights(heads)),
            A_log=on_device(torch.zeros(1, 1, heads.values, 1)),
            dt_bias=on_device(torch.zeros(heads.key_columns)),
        )
        # As models give it to their layer (sglang kimi_k3.py, `KimiK3DeltaAttention.__init__`).
        self.recurrent.lower_bound = self.described.linear_attn_config["gate_lower_bound"]

    def _recur(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        demand_rows(positions, len(input_ids), "positions", FORWARD)
        tokens, gates, betas = (
            demand_lookup(table, input_ids, "input_ids", FORWARD)
            for table in (self.token_inputs, self.gates, self.betas)
        )
        places = demand_lookup(self.position_inputs, positions, "positions", FORWARD)
        # Decodes and verifies hand over gates as rows, prompts by heads, and all of them betas with
        # a dimension before them; up to 0.5.21 prompts after the sigmoid (sglang kimi_linear.py,
        # KimiDeltaAttention.forward, and glm5_next.py).
        mode = getattr(forward_batch, "logical_forward_mode", forward_batch.forward_mode)
        if not mode.is_decode() and not mode.is_target_verify():
            heads = self.heads.keys, self.heads.key_width
            by_head = gates if self.flat_gates else gates.unflatten(-1, heads)
            gates = by_head[None]
            betas = betas.float().sigmoid() if is_before((0, 5, 22)) else betas
        read = self.recurrent(
            forward_batch=forward_batch, mixed_qkv=tokens + places, a=gates, b=betas[None]
        )
        demand_size(read, len(input_ids), self.heads.output, COMPUTED, FORWARD)
        return normed_heads(read, self.heads, CHANNEL_EPSILON)
