"""A model of a gated delta net and one layer of attention, as sglang runs Qwen3-Next.

The recurrent layer is the engine's own `RadixLinearAttention`. What a model's projections would
hand it are embeddings of tokens and positions, whose values the harness knows
(`recurrent_layers.delta_rule`); the norm behind it is plain torch, and its gate is left out.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.recurrent_layers import delta_rule
from fuzzgraph.recurrent_layers.delta_recurrence import LONGEST_ROW
from fuzzgraph.recurrent_layers.linear_heads import LinearHeads
from fuzzgraph.targets.offline.demands import demand_lookup, demand_rows, demand_size
from fuzzgraph.targets.sglang.attention_model import FORWARD
from fuzzgraph.targets.sglang.hybrid_model import COMPUTED, HybridModel
from fuzzgraph.targets.sglang.release import engine_module, has_module
from fuzzgraph.targets.sglang.stubs.hybrid_pools import (
    GDN_BACKEND,
    described_delta_net,
)

LAYER = "sglang.srt.layers.radix_linear_attention"


class DeltaNetModel(HybridModel):
    """Tokens at positions, and both layers over them."""

    full_layer = 1
    describe = staticmethod(described_delta_net)

    @property
    def heads(self) -> LinearHeads:
        """Of the recurrent layer."""
        return delta_rule.delta_heads(self._config)

    def kept_states(self, cache: Any) -> dict[str, Any]:
        """Up to 0.5.9 fused_sigmoid_gating_recurrent.py has the columns of a value together, and
        those of a key since, both in the shape that the pool gives them."""
        conv, state = cache.conv[0][self.number], cache.temporal[self.number]
        turned = {"delta_conv_state"}
        if not has_module(GDN_BACKEND):
            turned.add("delta_state")
            heads = self.heads
            state = state.view(len(state), heads.values, heads.key_width, heads.value_width)
        named = frozenset(turned)
        return dict(delta_state=state, delta_conv_state=conv, transposed_states=named)

    def _make_recurrent(self, config: EngineConfig, device: torch.device) -> None:
        on_device, of_model, heads = self.on_device, self.of_model, self.heads
        self.token_inputs = of_model(
            delta_rule.delta_token_inputs(content_for(config, self.number))
        )
        self.position_inputs = of_model(delta_rule.delta_position_inputs(LONGEST_ROW, heads))
        self.gates = of_model(delta_rule.delta_gates(heads))
        self.betas = of_model(delta_rule.delta_betas(heads))
        a_log = delta_rule.RING_A_LOG if config.state_ring_len else delta_rule.A_LOG
        self.recurrent = engine_module(LAYER).RadixLinearAttention(
            layer_id=self.place,
            **head_arguments(heads),
            conv_weights=of_model(delta_rule.delta_conv_weights(heads)),
            A_log=on_device(torch.full((heads.values,), a_log)),
            dt_bias=on_device(torch.full((heads.values,), delta_rule.DT_BIAS)),
        )

    def _recur(
        self, input_ids: torch.Tensor, positions: torch.Tensor, forward_batch: Any
    ) -> torch.Tensor:
        demand_rows(positions, len(input_ids), "positions", FORWARD)
        tokens = demand_lookup(self.token_inputs, input_ids, "input_ids", FORWARD)
        places = demand_lookup(self.position_inputs, positions, "positions", FORWARD)
        gates = demand_lookup(self.gates, input_ids, "input_ids", FORWARD)
        betas = demand_lookup(self.betas, input_ids, "input_ids", FORWARD)
        read = self.recurrent(
            forward_batch=forward_batch, mixed_qkv=tokens + places, a=gates, b=betas
        )
        demand_size(read, len(input_ids), self.heads.output, COMPUTED, FORWARD)
        return normed_heads(read, self.heads, delta_rule.NORM_EPSILON)


def head_arguments(heads: LinearHeads) -> dict[str, int]:
    """How the engine's `RadixLinearAttention` is told of its heads."""
    return {
        "num_q_heads": heads.keys,
        "num_k_heads": heads.keys,
        "num_v_heads": heads.values,
        "head_q_dim": heads.key_width,
        "head_k_dim": heads.key_width,
        "head_v_dim": heads.value_width,
    }


def normed_heads(read: torch.Tensor, heads: LinearHeads, epsilon: float) -> torch.Tensor:
    """[tokens, columns] of [1, tokens, heads, columns of one]: each normed, as models do it."""
    by_head = read.reshape(-1, heads.values, heads.value_width)
    return normed(by_head, epsilon).reshape(-1, heads.output)


def normed(heads: torch.Tensor, epsilon: float) -> torch.Tensor:
    """Each head of length 1, up to its epsilon."""
    return heads * (heads.square().mean(-1, keepdim=True) + epsilon).rsqrt()
