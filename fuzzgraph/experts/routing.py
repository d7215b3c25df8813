"""Which experts a token has, and the weight of each.

A token's weights are the softmax of the `k` largest of its router's numbers (Shazeer et al. 2017,
"Outrageously large neural networks", section 2.1; Qwen3 and Mixtral normalise so), or parts of the
sum of their sigmoids (DeepSeek-AI 2024, "DeepSeek-V3", equations 13 to 15). Behind sigmoids a bias
of each expert, which weights leave out, is added before the choice (section 2.1.2), and groups of
experts are chosen first, by the sum of the two best of each. Weights of sigmoids are scaled, so
that a token's add up to 2.5.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.experts import quantised
from fuzzgraph.experts.columns import EXPERT_WIDTH, OWN, quarters
from fuzzgraph.experts.weights import UNQUANTISED
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, Batch, IntArray

SIGMOID_SCALE = 2.5
"""What the weights of a token's experts add up to where they are parts of sigmoids; of DeepSeek V3
(config.json, routed_scaling_factor)."""
_GAPS = (0.25, 0.5, 0.75, 1.0)
"""How far the router's numbers lie apart, by token, so that weights differ from token to token."""


def router_weight(
    experts: int, kind: str = UNQUANTISED, *, biased: bool = False, scoring: str = "softmax"
) -> torch.Tensor:
    """[experts, EXPERT_WIDTH] float32: the router's numbers, which the column of an id chooses.

    Args:
        biased: less `router_bias`, which a router adds, so that its numbers stay the same.
        scoring: see `EngineConfig.expert_scoring`.
    """
    found = torch.zeros(experts, EXPERT_WIDTH)
    for token, order in enumerate(_by_preference(experts)):
        column = OWN + token if kind == UNQUANTISED else quantised.column_of_id(token)
        ranks, chosen = torch.arange(float(experts)), torch.from_numpy(order)
        found[chosen, column] = -_gap(token) * ranks
        if scoring == "sigmoid":
            found[chosen, column] = _before_sigmoid(ranks, correction_bias(experts)[chosen])
    if biased:
        found[:, OWN : OWN + VOCAB] -= router_bias(experts)[:, None]
    return found


def router_bias(experts: int) -> torch.Tensor:
    """[experts] float32: so far apart that without it a router would choose others."""
    return 16 * quarters(9800, experts)


def correction_bias(experts: int) -> torch.Tensor:
    """[experts] float32: what is added to sigmoids before the choice, and to no weight; so far
    apart that without it a router would choose others."""
    return quarters(9801, experts) / 4


def _before_sigmoid(ranks: torch.Tensor, biases: torch.Tensor) -> torch.Tensor:
    """Numbers whose sigmoids and biases add up to less from rank to rank, to as much again behind
    16 of them, whose sums in pairs differ as well. They are exact in float16."""
    ranks = ranks.clamp(max=16)
    sums = 0.85 - 0.03 * ranks - 0.0008 * ranks**2
    return (torch.logit(sums - biases) * 512).round() / 512


def _gap(token: int) -> float:
    return _GAPS[token % len(_GAPS)]


@lru_cache(maxsize=8)
def _by_preference(experts: int) -> IntArray:
    """[VOCAB, experts] the experts of each token, the one that its router prefers first."""
    counters = np.arange(VOCAB * experts, dtype=np.uint64)
    drawn = hash_counters(9600 + experts, counters).reshape(VOCAB, experts)
    return np.argsort(drawn, axis=1).astype(np.int64)


def named_experts(config: EngineConfig) -> int:
    """How many experts a token has a number and a weight of."""
    return config.experts_per_token + (config.shared_experts == "fused")


def chosen_experts(batch: Batch, config: EngineConfig) -> IntArray:
    """int64 [num_tokens, experts_per_token] of each new token, the preferred one first."""
    return experts_of_tokens(config)[batch.input_ids]


def experts_of_tokens(config: EngineConfig) -> IntArray:
    """int64 [VOCAB, experts_per_token] the same of each token."""
    order = _by_preference(config.num_experts)
    if config.expert_groups > 1:
        order = _within_groups(config.num_experts, config.expert_groups)
    return order[:, : config.experts_per_token]


@lru_cache(maxsize=16)
def _within_groups(experts: int, groups: int) -> IntArray:
    """[VOCAB, experts / 2] of each token the experts of the better half of its groups, the
    preferred one first."""
    sums = _sigmoids(experts) + correction_bias(experts).double()
    best = sums.view(VOCAB, groups, -1).topk(2).values.sum(-1)
    kept = torch.zeros(VOCAB, groups, dtype=torch.bool)
    kept.scatter_(1, best.topk(groups // 2).indices, True)
    left_out = ~kept.repeat_interleave(experts // groups, dim=1)
    order = sums.masked_fill(left_out, -torch.inf).argsort(1, descending=True)
    return order[:, : experts // 2].numpy()


@lru_cache(maxsize=8)
def _sigmoids(experts: int) -> torch.Tensor:
    """float64 [VOCAB, experts] of the router's numbers."""
    numbers = router_weight(experts, scoring="sigmoid")[:, OWN : OWN + VOCAB]
    return numbers.T.double().sigmoid()


def expert_weights(token: int, config: EngineConfig) -> torch.Tensor:
    """float64 [experts_per_token] of a token's experts."""
    if config.expert_scoring == "softmax":
        numbers = -_gap(token) * torch.arange(config.experts_per_token, dtype=torch.float64)
        return numbers.softmax(0)
    parts = _sigmoids(config.num_experts)[token, experts_of_tokens(config)[token]]
    return SIGMOID_SCALE * parts / parts.sum()
