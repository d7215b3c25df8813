"""The layer of experts in a model with LoRA: the engine's own, with known weights and routes.

Each token brings the experts that the case says of it and their weights, as the engine's router
hands them over. `LoRAManager` wraps the layer as it does that of Qwen2-MoE, beside whose routed
experts the linear layer of gate and up is a shared expert.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from fuzzgraph.adapted_layer import ADAPTED_INPUT
from fuzzgraph.case import EngineConfig
from fuzzgraph.experts import adapted
from fuzzgraph.experts.weights import INTERMEDIATE
from fuzzgraph.targets.offline.demands import demand_lookup, demand_size
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.attention_model import FORWARD, as_loaded
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.targets.sglang.stubs.fused_experts import TOPK

FUSED = "sglang.srt.layers.moe.fused_moe_triton.layer"
PLACE = "model.layers.0.mlp.experts"
_COMPUTED = "what experts with adapters computed"


class AdaptedExperts:
    """The engine's layer of experts, for as long as the manager has not wrapped it; and routes.

    Args:
        device: of the engine.
    """

    def __init__(self, config: EngineConfig, device: torch.device) -> None:
        self._config = config
        dtype = getattr(torch, config.dtype)
        with as_loaded(device, dtype):
            self.layer = call_with_known(
                engine_module(FUSED).FusedMoE,
                num_experts=config.num_experts,
                top_k=config.experts_per_token,
                layer_id=0,
                hidden_size=ADAPTED_INPUT,
                intermediate_size=INTERMEDIATE,
                params_dtype=dtype,
                reduce_results=False,
                prefix=PLACE,
            )
        every = range(config.num_experts)
        gate, up, down = (
            torch.stack([adapted.base_expert(expert, product) for expert in every])
            for product in adapted.PRODUCTS
        )
        self.layer.w13_weight.data.copy_(torch.cat((gate, up), dim=1))
        self.layer.w2_weight.data.copy_(down)
        experts, weights = adapted.routes_of_tokens(config)
        ids = torch.from_numpy(experts).to(torch.int32)
        self._ids = torch.empty_like(ids, device=device).copy_(ids)
        self._weights = torch.empty_like(weights, device=device).copy_(weights)

    def through(self, wrapped: Any, x: torch.Tensor, input_ids: torch.Tensor) -> torch.Tensor:
        """[tokens, ADAPTED_INPUT] what the experts give.

        Args:
            wrapped: the layer, as the manager left it in the model.
            x: [tokens, ADAPTED_INPUT] what they get.
        """
        ids = demand_lookup(self._ids, input_ids, "input_ids", FORWARD)
        weights = demand_lookup(self._weights, input_ids, "input_ids", FORWARD)
        routes = engine_module(TOPK).StandardTopKOutput(weights, ids, None)
        out: torch.Tensor = wrapped(x, routes)
        return demand_size(out, len(x), ADAPTED_INPUT, _COMPUTED, FORWARD)


def described_experts(config: EngineConfig) -> Mapping[str, Any]:
    """What the engine's description of a model says of its experts."""
    return {
        "architectures": ["Qwen2MoeForCausalLM"],
        "moe_intermediate_size": INTERMEDIATE,
        "num_experts": config.num_experts,
        "num_experts_per_tok": config.experts_per_token,
    }


def expert_tensors(config: EngineConfig, adapter: int) -> dict[str, torch.Tensor]:
    """Weights of an adapter by PEFT's names: one tensor for each expert, or with shared outer
    adapters one for all, whose first dimension is 1 where they have it in common."""
    shared_outer = config.experts_shared_outer_loras
    mine = [
        expert
        for expert in range(config.num_experts)
        if adapted.changes_expert(adapter, expert, shared_outer=shared_outer)
    ]
    found = {}
    for product in adapted.PRODUCTS:
        weights = [
            adapted.adapter_of_expert(adapter, expert, product, shared_outer=shared_outer)
            for expert in mine
        ]
        if not shared_outer:
            for expert, pair in zip(mine, weights, strict=True):
                for which, weight in zip("AB", pair, strict=True):
                    found[f"{PLACE}.{expert}.{product}.lora_{which}.weight"] = weight
            continue
        outer = "B" if product == "down_proj" else "A"
        for which, each in zip("AB", zip(*weights, strict=True), strict=False):
            kept = each[:1] if which == outer else each
            found[f"{PLACE}.{product}.lora_{which}.weight"] = torch.stack(kept)
    return found
