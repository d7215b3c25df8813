"""What the layer of experts gives for each token, in the model's dtype.

Each of several ranks gives its part of the sum. Where the ranks are data-parallel, each of them
computes the tokens of all, and a rank gets back the whole sum of its own ones. A shared expert
computes every token as well, with a weight of one (DeepSeek-AI 2024, "DeepSeek-V3", equations 12
and 20 and section 4.2). Several ranks share out the columns between its products; fused with the
others it is whole on each rank, which gives an even part of it.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.data_ranks import tokens_of_ranks
from fuzzgraph.experts import quantised
from fuzzgraph.experts.columns import ATTENDED, EXPERT_WIDTH
from fuzzgraph.experts.placement import local_experts, placed_experts, shared_columns
from fuzzgraph.experts.routing import (
    SIGMOID_SCALE,
    chosen_experts,
    expert_weights,
    experts_of_tokens,
)
from fuzzgraph.experts.weights import (
    SHARED,
    SWIGLU_ALPHA,
    SWIGLU_LIMIT,
    UNQUANTISED,
    down_bias,
    down_weight,
    gate_up_bias,
    gate_up_weight,
    has_biases,
    token_rows,
)
from fuzzgraph.world import VOCAB, Batch, IntArray

EXPERTS = "experts"
"""The output: what the layer gives for each token, on one of several ranks its part of the sum."""
OF_RANKS = "experts_of_ranks"
"""The output: what the experts of one of several data-parallel ranks give for each token of all
ranks, one rank behind another."""
_LARGEST = {"silu": 32.0, "clamped_swiglu": 128.0}
"""More than any number that one of 64 experts gives, by activation."""


def expert_outputs(batch: Batch, config: EngineConfig, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, EXPERT_WIDTH] in `dtype`: what the layer gives for each new token."""
    if config.expert_copies:
        return _of_copies(batch, config, dtype)
    whole = config.dp_size > 1
    summed = range(config.num_experts) if whole else local_experts(config)
    return _of_tokens(batch.input_ids, config, dtype, summed, whole)


def _of_copies(batch: Batch, config: EngineConfig, dtype: torch.dtype) -> torch.Tensor:
    """The same where the rows of tokens say which ranks compute them."""
    found = torch.zeros(batch.num_tokens, EXPERT_WIDTH, dtype=dtype)
    chosen, placed = chosen_experts(batch, config).tolist(), placed_experts(batch, config).tolist()
    mine, alone = local_experts(config), config.ep_size == 1
    for row, token in enumerate(batch.input_ids.tolist()):
        pairs = zip(chosen[row], placed[row], strict=True)
        summed = tuple(expert for expert, place in pairs if place in mine)
        shared = _of_shared(token, config, dtype, alone)
        found[row] = _of_token(token, config, dtype, summed) + shared
    return found


def rank_outputs(batch: Batch, config: EngineConfig, dtype: torch.dtype) -> torch.Tensor:
    """[tokens of all ranks, EXPERT_WIDTH] in `dtype`: this rank's part of each sum, without that of
    a shared expert apart, which is added behind what the other experts give."""
    tokens = np.concatenate(tokens_of_ranks(batch, config))
    if config.shared_experts == "apart":
        config = msgspec.structs.replace(config, shared_experts="none")
    return _of_tokens(tokens, config, dtype, local_experts(config), False)


def other_parts(config: EngineConfig) -> torch.Tensor:
    """[VOCAB, EXPERT_WIDTH] float64: what experts of other ranks give for each token."""
    tokens, everyone = np.arange(VOCAB), range(config.num_experts)
    whole = _of_tokens(tokens, config, torch.float64, everyone, True)
    return whole - _of_tokens(tokens, config, torch.float64, local_experts(config), False)


def _of_tokens(
    tokens: IntArray, config: EngineConfig, dtype: torch.dtype, summed: range, whole: bool
) -> torch.Tensor:
    """[tokens, EXPERT_WIDTH] the sums over these experts, and the shared one, whole or in part."""
    found = torch.zeros(len(tokens), EXPERT_WIDTH, dtype=dtype)
    for place, token in enumerate(tokens.tolist()):
        routed = _of_token(token, config, dtype, summed)
        found[place] = routed + _of_shared(token, config, dtype, whole)
    return found


@lru_cache(maxsize=4096)
def _of_token(
    token: int, config: EngineConfig, dtype: torch.dtype, summed: range | tuple[int, ...]
) -> torch.Tensor:
    """[EXPERT_WIDTH] the sum over those of the token's experts that are among these."""
    weights = expert_weights(token, config)
    chosen = experts_of_tokens(config)[token].tolist()
    found = torch.zeros(EXPERT_WIDTH, dtype=dtype)
    for expert, weight in zip(chosen, weights, strict=True):
        if expert in summed:
            biased, kind = has_biases(config), config.expert_quantisation
            found += weight.to(dtype) * _of_expert(token, expert, dtype, biased, kind)
    return found


@lru_cache(maxsize=512)
def _of_shared(token: int, config: EngineConfig, dtype: torch.dtype, whole: bool) -> torch.Tensor:
    """[EXPERT_WIDTH] what the shared expert gives for a token, or this rank's part of that."""
    if config.shared_experts == "none":
        return torch.zeros(EXPERT_WIDTH, dtype=dtype)
    if whole or config.shared_experts == "fused":
        found = _of_expert(token, SHARED, dtype, False, UNQUANTISED)
        return found if whole else found / config.ep_size
    read, down = _weights(SHARED, UNQUANTISED, dtype)
    gate, up = (read @ _rows(UNQUANTISED, dtype)[token]).chunk(2)
    mine = shared_columns(config)
    return down[:, mine] @ (torch.nn.functional.silu(gate) * up)[mine]


@lru_cache(maxsize=1024)
def _of_expert(
    token: int, expert: int, dtype: torch.dtype, biased: bool, kind: str
) -> torch.Tensor:
    """[EXPERT_WIDTH] what an expert gives for a token."""
    read, down = _weights(expert, kind, dtype)
    both = read @ _rows(kind, dtype)[token]
    if not biased:
        gate, up = both.chunk(2)
        return down @ (torch.nn.functional.silu(gate) * up)
    gate, up = (both + gate_up_bias(expert).to(dtype)).chunk(2)
    gate, up = gate.clamp(max=SWIGLU_LIMIT), up.clamp(-SWIGLU_LIMIT, SWIGLU_LIMIT)
    inner = gate * torch.sigmoid(SWIGLU_ALPHA * gate) * (up + 1)
    return down @ inner + down_bias(expert).to(dtype)


@lru_cache(maxsize=64)
def _weights(expert: int, kind: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What an expert reads of the columns that are not attention's; and W2."""
    read = gate_up_weight(expert, kind)[:, : EXPERT_WIDTH - ATTENDED]
    return read.to(dtype), down_weight(expert, kind).to(dtype)


@lru_cache(maxsize=4)
def _rows(kind: str, dtype: torch.dtype) -> torch.Tensor:
    return token_rows(kind).to(dtype)


def expert_coarseness(config: EngineConfig, dtype: torch.dtype) -> float:
    """How far the layer itself may be from the truth: engines round between its two products, after
    the weight and after the sum."""
    if config.expert_quantisation != UNQUANTISED:  # between the products nothing rounds
        return float(torch.finfo(dtype).eps) * quantised.largest_result()
    experts = SIGMOID_SCALE if config.expert_scoring == "sigmoid" else 1.0
    experts += config.shared_experts != "none"
    return 2 * float(torch.finfo(dtype).eps) * experts * _LARGEST[config.expert_activation]
