"""What a config says of LoRA adapters, brought into agreement with the rest of it."""

from __future__ import annotations

from fuzzgraph.capabilities import Capabilities
from fuzzgraph.case import DIMENSIONS
from fuzzgraph.strategies.config_features import Fields


def adapters(fields: Fields, can: Capabilities) -> None:
    """Adapters for a target that has them; a policy and pinned ones in some of the contexts."""
    if fields["draft_adapter"]:
        fields["max_loras"] = DIMENSIONS["max_loras"].default
    elif can.loras:
        fields["max_loras"] = fields["max_loras"] or 1 + fields["max_context_len"] % 3
    # By sizes that every case draws, so that each of them comes as often.
    drawn = fields["max_context_len"] // 3 + fields["req_pool_size"]
    if not fields["max_loras"]:
        fields["lora_eviction"] = DIMENSIONS["lora_eviction"].default
    elif fields["lora_eviction"] == can.lora_evictions[0]:
        fields["lora_eviction"] = can.lora_evictions[drawn % len(can.lora_evictions)]
    if not (can.pinned_loras and fields["max_loras"]) or fields["dp_size"] > 1:
        fields["pinned_loras"] = DIMENSIONS["pinned_loras"].default
    elif not fields["pinned_loras"] and sum(fields["capture_bs"]) % 3 == 1:
        # All others take turns in one slot.
        fields["pinned_loras"] = fields["max_loras"] - 1
    fields["pinned_loras"] = min(fields["pinned_loras"], fields["max_loras"])
    odd = (fields["max_context_len"] + sum(fields["capture_bs"])) % 2 == 1
    may = can.adapted_embeddings and fields["max_loras"] and fields["dp_size"] == 1
    fields["adapted_embeddings"] = bool(may and (fields["adapted_embeddings"] or odd))
