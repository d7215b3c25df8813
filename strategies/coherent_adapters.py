"""What a config says of LoRA adapters, brought into agreement with the rest of it."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS
from fuzzgraph.case.config_rules import EXPERT_LORA_OPTIONS
from fuzzgraph.strategies.config_features import Fields, Pins
from fuzzgraph.strategies.draws import Draws


def adapters(fields: Fields, can: Capabilities, draws: Draws) -> None:
    """Adapters for a target that has them; pinned ones in a third of its configs, weights of the
    embedding in half."""
    if fields["draft_adapter"]:
        fields["max_loras"] = DIMENSIONS["max_loras"].default
    elif can.loras:
        fields["max_loras"] = fields["max_loras"] or 1 + draws.below("max_loras", 3)
    if not fields["max_loras"]:
        fields["lora_eviction"] = DIMENSIONS["lora_eviction"].default
    elif fields["lora_eviction"] == can.lora_evictions[0]:
        fields["lora_eviction"] = draws.pick("lora_eviction", can.lora_evictions)
    if not (can.pinned_loras and fields["max_loras"]) or fields["dp_size"] > 1:
        fields["pinned_loras"] = DIMENSIONS["pinned_loras"].default
    elif not fields["pinned_loras"] and draws.percent("pinned_loras", 33):
        # All others take turns in one slot.
        fields["pinned_loras"] = fields["max_loras"] - 1
    fields["pinned_loras"] = min(fields["pinned_loras"], fields["max_loras"])
    may = can.adapted_embeddings and fields["max_loras"] and fields["dp_size"] == 1
    drawn = fields["adapted_embeddings"] or draws.percent("adapted_embeddings", 50)
    fields["adapted_embeddings"] = bool(may and drawn)


def adapted_experts(fields: Fields, can: Capabilities, pins: Pins, draws: Draws) -> None:
    """Experts whose weights adapters have too, in half of the configs of a target that may have
    them, all on one rank; each option in half of these."""
    for name in (
        "ep_size",
        "ep_rank",
        "expert_exchange",
        "expert_activation",
        "expert_quantisation",
        "expert_groups",
        "shared_experts",
        "expert_copies",
    ):
        fields[name] = DIMENSIONS[name].default
    pinned = dict(pins)
    if not can.experts or not fields["max_loras"] or fields["dp_size"] > 1:
        fields["num_experts"] = DIMENSIONS["num_experts"].default
    elif "num_experts" not in pinned:
        fields["num_experts"] = draws.pick("num_experts", (0, 8, 4, 0, 16, 0))
    if not fields["num_experts"]:
        for name in ("experts_per_token", *EXPERT_LORA_OPTIONS):
            fields[name] = DIMENSIONS[name].default
        return
    fields["dtype"] = can.lora_experts_dtype or fields["dtype"]
    if "experts_per_token" not in pinned:
        each = 1 + draws.below("experts_per_token", can.max_experts_per_token)
        fields["experts_per_token"] = min(each, fields["num_experts"])
    for name in EXPERT_LORA_OPTIONS:
        if name not in pinned:
            fields[name] = bool(getattr(can, name) and draws.percent(name, 50))
