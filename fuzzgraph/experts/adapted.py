"""Experts with LoRA adapters: known weights, and what the layer computes.

A token goes to the experts that `fuzzgraph.experts.routing` names, with the weights from there.
Expert e gives `W2 (silu(g) * u)`, where g and u are `W1 x` and `W3 x` (Shazeer 2020, "GLU
variants"). Each of the three products has an adapter of its own, that of the token's request and of
the expert: `W x + s B (A x)` (Hu et al. 2021, "LoRA", equation 3). With shared outer adapters the
experts of a layer have one A for g, one A for u and one B behind `W2` in common, which are the
sides that meet the residual stream (sglang `--experts-shared-outer-loras`). Tokens bring to the
experts what they bring to linear layers (`fuzzgraph.adapted_layer`).

Weights are multiples of 1/4 or of 1/4 times a power of two, so that bfloat16 holds them; B is the
smaller the larger rank and scale are, so that adapters of every rank change as much as the experts
give.
"""

from __future__ import annotations

import math
from functools import lru_cache

import torch

from fuzzgraph.adapted_layer import ADAPTED_INPUT, adapted_inputs, numbers, rank_of, scale_of
from fuzzgraph.case import EngineConfig
from fuzzgraph.experts.routing import chosen_experts, expert_weights, experts_of_tokens
from fuzzgraph.experts.weights import INTERMEDIATE
from fuzzgraph.world import VOCAB, Batch, IntArray

ADAPTED_EXPERTS = "lora_experts"
"""The output: what the experts give for each token."""
PRODUCTS = ("gate_proj", "up_proj", "down_proj")
"""W1, W3 and W2, by the names that models give them (transformers modeling_qwen3_moe.py)."""
_ROUNDINGS = 4
"""How often a number is rounded on its way through the layer, beside plain torch's roundings."""
_SMALL = 2.0
"""What the smaller ones of the numbers between a token's row and its output come to: an output may
be smaller than what it was made of."""


def changes_expert(adapter: int, expert: int, *, shared_outer: bool) -> bool:
    """Whether an adapter has weights of an expert. Of four, one has none of any, and one those of
    every other expert, if experts have nothing in common.

    >>> [changes_expert(number, 1, shared_outer=False) for number in range(5)]
    [False, True, False, False, True]
    >>> [changes_expert(number, 1, shared_outer=True) for number in range(5)]
    [False, True, True, False, True]
    """
    if not adapter or adapter % 4 == 3:
        return False
    return shared_outer or adapter % 4 != 2 or expert % 2 == 0


def base_expert(expert: int, product: str) -> torch.Tensor:
    """[columns, input] float32: W of a product."""
    columns, width = _shape(product)
    return numbers(_key(0, expert, product), columns, width) / 2


def adapter_of_expert(
    adapter: int, expert: int, product: str, *, shared_outer: bool
) -> tuple[torch.Tensor, torch.Tensor]:
    """(A [rank, input], B [columns, rank]) float32 of an adapter's product of an expert."""
    (columns, width), rank = _shape(product), rank_of(adapter)
    inner = product == "down_proj"  # its B is the outer side, of the others A
    of_a, of_b = (0 if shared_outer and shared else 1 + expert for shared in (not inner, inner))
    a = numbers(_key(adapter, of_a, product), rank, width)
    b = numbers(_key(adapter, of_b, product) + 1, columns, rank)
    return a, b * 2.0 ** -math.ceil(math.log2(scale_of(adapter) * math.sqrt(rank)))


def _shape(product: str) -> tuple[int, int]:
    if product == "down_proj":
        return ADAPTED_INPUT, INTERMEDIATE
    return INTERMEDIATE, ADAPTED_INPUT


def _key(adapter: int, expert: int, product: str) -> int:
    return 1_000_000 + 10_000 * adapter + 8 * expert + 2 * PRODUCTS.index(product)


@lru_cache(maxsize=8192)
def _of_expert(
    token: int, adapter: int, expert: int, shared_outer: bool, dtype: torch.dtype
) -> torch.Tensor:
    """[ADAPTED_INPUT] what an expert gives for a token under an adapter."""
    x = adapted_inputs()[token].to(dtype)

    def through(product: str, given: torch.Tensor) -> torch.Tensor:
        out = base_expert(expert, product).to(dtype) @ given
        if not changes_expert(adapter, expert, shared_outer=shared_outer):
            return out
        a, b = adapter_of_expert(adapter, expert, product, shared_outer=shared_outer)
        return out + (scale_of(adapter) * b).to(dtype) @ (a.to(dtype) @ given)

    gate, up = through("gate_proj", x), through("up_proj", x)
    return through("down_proj", torch.nn.functional.silu(gate) * up)


def adapted_expert_outputs(batch: Batch, config: EngineConfig, dtype: torch.dtype) -> torch.Tensor:
    """[num_tokens, ADAPTED_INPUT] in `dtype`: the weighted sum over each new token's experts."""
    found = torch.zeros(len(batch.input_ids), ADAPTED_INPUT, dtype=dtype)
    adapters, experts = batch.token_adapters.tolist(), chosen_experts(batch, config).tolist()
    for place, token in enumerate(batch.input_ids.tolist()):
        weights = expert_weights(token, config)
        for expert, weight in zip(experts[place], weights, strict=True):
            found[place] += weight.to(dtype) * _of_expert(
                token, adapters[place], expert, config.experts_shared_outer_loras, dtype
            )
    return found


def routes_of_tokens(config: EngineConfig) -> tuple[IntArray, torch.Tensor]:
    """(experts, float32 weights) [VOCAB, experts_per_token] of each token."""
    weights = [expert_weights(token, config).float() for token in range(VOCAB)]
    return experts_of_tokens(config), torch.stack(weights)


def adapted_expert_coarseness(dtype: torch.dtype) -> tuple[float, float]:
    """(relative, absolute): how far the layer itself may be from the truth. Engines store what
    stands between its products, and the kernels that run here cut off bits of bfloat16."""
    relative = _ROUNDINGS * float(torch.finfo(dtype).eps)
    return relative, relative * _SMALL
