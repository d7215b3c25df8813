"""The group of all ranks, as the layers of a case meet it."""

from __future__ import annotations

from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.sglang.stubs.adapter_ranks import AdapterRanks
from fuzzgraph.targets.sglang.stubs.expert_ranks import ExpertRanks
from fuzzgraph.targets.sglang.stubs.head_ranks import HeadRanks
from fuzzgraph.targets.sglang.stubs.tp_groups import Group, whole


def all_ranks(config: EngineConfig) -> Group:
    """One that meets others where tokens go around between ranks: those of experts, of layers
    with adapters, and of a model's head."""
    if config.gathered_logits:
        return HeadRanks(config)
    if config.dp_size > 1 and config.num_experts:
        return ExpertRanks(config)
    if config.dp_size > 1 and config.max_loras:
        return AdapterRanks(config)
    return whole(config)
