"""Where experts lie: their places on the ranks, and how many tokens each of them has.

Several ranks share the experts out, one after another. Copies of some (EPLB) have places of their
own, and take turns with the first of them.
"""

from __future__ import annotations

import numpy as np

from fuzzgraph.case import EngineConfig
from fuzzgraph.data_ranks import tokens_of_ranks
from fuzzgraph.experts.routing import chosen_experts, experts_of_tokens
from fuzzgraph.experts.weights import INTERMEDIATE
from fuzzgraph.world import Batch, IntArray


def places(config: EngineConfig) -> int:
    """Places of experts on all ranks, one behind another."""
    return config.num_experts + config.expert_copies


def local_experts(config: EngineConfig) -> range:
    """The places of this rank, which are the numbers of its experts where there are no copies."""
    each = places(config) // config.ep_size
    return range(config.ep_rank * each, (config.ep_rank + 1) * each)


def expert_at(config: EngineConfig) -> list[int]:
    """The expert at each place. With copies each lies a place before its number, and behind the
    last one lie copies, of every third first."""
    experts = config.num_experts
    if not config.expert_copies:
        return [*range(experts)]
    first = [(place + 1) % experts for place in range(experts)]
    return first + [3 * copy % experts for copy in range(config.expert_copies)]


def shared_columns(config: EngineConfig) -> slice:
    """The columns between the products of a shared expert that this rank computes, where the
    shared expert lies apart from the others."""
    each = INTERMEDIATE // config.ep_size
    return slice(config.ep_rank * each, (config.ep_rank + 1) * each)


def placed_experts(batch: Batch, config: EngineConfig) -> IntArray:
    """int64 [num_tokens, experts_per_token] the places of the experts of each new token: copies
    take turns from row to row, the first of them first (sglang expert_location_dispatch.py
    `_topk_ids_logical_to_physical_dynamic`, where all ranks have to agree)."""
    chosen = chosen_experts(batch, config)
    if not config.expert_copies:
        return chosen
    lies: list[list[int]] = [[] for _ in range(config.num_experts)]
    for place, expert in enumerate(expert_at(config)):
        lies[expert].append(place)
    found = [
        [lies[expert][row % len(lies[expert])] for expert in experts]
        for row, experts in enumerate(chosen.tolist())
    ]
    return np.array(found, dtype=np.int64).reshape(chosen.shape)


def expert_counts(batch: Batch, config: EngineConfig) -> IntArray:
    """int64 [num_experts] how many new tokens each expert has; with copies, each place."""
    placed = placed_experts(batch, config).ravel()
    return np.bincount(placed, minlength=places(config)).astype(np.int64)


def received_counts(batch: Batch, config: EngineConfig) -> IntArray:
    """int64 [experts of this rank] how many tokens of all ranks each of them has."""
    tokens = np.concatenate(tokens_of_ranks(batch, config))
    chosen = experts_of_tokens(config)[tokens].ravel()
    counts = np.bincount(chosen, minlength=config.num_experts).astype(np.int64)
    return counts[local_experts(config)]
