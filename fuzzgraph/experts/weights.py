"""What a token brings to its experts, and the weights of these.

An expert computes `W2 (silu(W1 x) * (W3 x))` (Shazeer 2020, "GLU variants"). Those of GPT-OSS have
biases at both products and at the router, and between the products `g sigmoid(1.702 g) (u + 1)`
with g of at most 7 and u from -7 to 7 (OpenAI 2025, gpt-oss/torch/model.py swiglu). Weights may be
those of a checkpoint in FP8 or INT8 (`quantised`).
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.experts import quantised
from fuzzgraph.experts.columns import EXPERT_WIDTH, OWN, quarters
from fuzzgraph.world import VOCAB

UNQUANTISED = "none"
"""Experts whose weights have the model's dtype."""
INTERMEDIATE = 16
"""Columns between the two products of an expert whose weights are not quantised."""
SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
"""Of GPT-OSS."""
SHARED = 512
"""The number by which the shared expert has its weights: more than any that a router chooses."""


def token_rows(kind: str = UNQUANTISED) -> torch.Tensor:
    """[VOCAB, EXPERT_WIDTH - ATTENDED] float32: what each token brings to the layer itself.

    Args:
        kind: of the experts' weights, as `EngineConfig.expert_quantisation` names it; so below.
    """
    if kind != UNQUANTISED:
        return quantised.quantised_rows(kind)
    return torch.cat((4 * quarters(9500, VOCAB, OWN), torch.eye(VOCAB)), dim=1)


def gate_up_weight(expert: int, kind: str = UNQUANTISED) -> torch.Tensor:
    """[2 * inner, EXPERT_WIDTH] float32: W1, and W3 below it."""
    if kind != UNQUANTISED:
        both = quantised.gates_and_ups(kind, expert)
        return torch.cat([each.whole() for each in both]).float()
    found = torch.zeros(2 * INTERMEDIATE, EXPERT_WIDTH)
    found[:, :OWN] = quarters(9700 + 2 * expert, 2 * INTERMEDIATE, OWN)
    return found


def down_weight(expert: int, kind: str = UNQUANTISED) -> torch.Tensor:
    """[EXPERT_WIDTH, inner] float32: W2."""
    if kind != UNQUANTISED:
        return quantised.down(kind, expert).whole().float()
    return quarters(9701 + 2 * expert, EXPERT_WIDTH, INTERMEDIATE)


def gate_up_bias(expert: int) -> torch.Tensor:
    """[2 * INTERMEDIATE] float32: the bias of W1, and that of W3 below it; so large that what they
    give is often beyond its limit."""
    return 12 * quarters(9900 + 2 * expert, 2 * INTERMEDIATE)


def down_bias(expert: int) -> torch.Tensor:
    """[EXPERT_WIDTH] float32: the bias of W2."""
    return 4 * quarters(9901 + 2 * expert, EXPERT_WIDTH)


def intermediate(config: EngineConfig) -> int:
    """Columns between the two products of an expert."""
    return INTERMEDIATE if config.expert_quantisation == UNQUANTISED else quantised.INNER


def has_biases(config: EngineConfig) -> bool:
    """Whether router and experts have biases."""
    return config.expert_activation == "clamped_swiglu"
