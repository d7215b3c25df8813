"""A layer of experts behind attention: known weights, and what the layer computes.

A router gives every token a number for each expert and takes the `k` experts with the largest.
Their weights are the softmax of these k numbers (Shazeer et al. 2017, "Outrageously large neural
networks", section 2.1; Qwen3 and Mixtral normalise so), or parts of the sum of their sigmoids
(DeepSeek-AI 2024, "DeepSeek-V3", equations 13 to 15). An expert computes
`W2 (silu(W1 x) * (W3 x))` (Shazeer 2020, "GLU variants"), and the layer gives the weighted sum.
Those of GPT-OSS have biases at both products and at the router, and between the products
`g sigmoid(1.702 g) (u + 1)` with g of at most 7 and u from -7 to 7 (OpenAI 2025,
gpt-oss/torch/model.py swiglu). Several ranks share the experts out, one after another, and each
gives its part of the sum. Where the ranks are data-parallel, each of them computes the tokens of
all, and a rank gets back the whole sum of its own ones.

Behind sigmoids a bias of each expert, which weights leave out, is added before the choice (section
2.1.2), and groups of experts are chosen first, by the sum of the two best of each. Weights of
sigmoids are scaled, so that a token's add up to 2.5. A shared expert computes every
token as well, with a weight of one (DeepSeek-AI 2024, equations 12 and 20 and section 4.2). Several
ranks share out the columns between its products; fused with the others it is whole on each rank,
which gives an even part of it.

Weights may be those of a checkpoint in FP8 or INT8 (`fuzzgraph.quantised_experts`).

A token's row holds columns of its own, one column for its token id, and columns of attention. The
router reads the id, the experts read the token's own columns, and the weights of attention's are
zero. So the truth follows from the token alone and no two experts come close for any token, while
what attention leaves undefined in padded rows reaches router and experts as it does in a model.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec
import numpy as np
import torch

from fuzzgraph import quantised_experts
from fuzzgraph.case import EngineConfig
from fuzzgraph.expert_columns import ATTENDED, EXPERT_WIDTH, OWN, quarters
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, Batch, IntArray

EXPERTS = "experts"
"""The output: what the layer gives for each token, on one of several ranks its part of the sum."""
OF_RANKS = "experts_of_ranks"
"""The output: what the experts of one of several data-parallel ranks give for each token of all
ranks, one rank behind another."""
UNQUANTISED = "none"
"""Experts whose weights have the model's dtype."""
INTERMEDIATE = 16
"""Columns between the two products of an expert whose weights are not quantised."""
_GAPS = (0.25, 0.5, 0.75, 1.0)
"""How far the router's numbers lie apart, by token, so that weights differ from token to token."""
_LARGEST = {"silu": 32.0, "clamped_swiglu": 128.0}
"""More than any number that one of 64 experts gives, by activation."""
SWIGLU_ALPHA, SWIGLU_LIMIT = 1.702, 7.0
"""Of GPT-OSS."""
SIGMOID_SCALE = 2.5
"""What the weights of a token's experts add up to where they are parts of sigmoids; of DeepSeek V3
(config.json, routed_scaling_factor)."""
SHARED = 512
"""The number by which the shared expert has its weights: more than any that a router chooses."""


def token_rows(kind: str = UNQUANTISED) -> torch.Tensor:
    """[VOCAB, EXPERT_WIDTH - ATTENDED] float32: what each token brings to the layer itself.

    Args:
        kind: of the experts' weights, as `EngineConfig.expert_quantisation` names it; so below.
    """
    if kind != UNQUANTISED:
        return quantised_experts.quantised_rows(kind)
    return torch.cat((4 * quarters(9500, VOCAB, OWN), torch.eye(VOCAB)), dim=1)


@lru_cache(maxsize=8)
def _by_preference(experts: int) -> IntArray:
    """[VOCAB, experts] the experts of each token, the one that its router prefers first."""
    counters = np.arange(VOCAB * experts, dtype=np.uint64)
    drawn = hash_counters(9600 + experts, counters).reshape(VOCAB, experts)
    return np.argsort(drawn, axis=1).astype(np.int64)


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
        column = OWN + token if kind == UNQUANTISED else quantised_experts.column_of_id(token)
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


def gate_up_weight(expert: int, kind: str = UNQUANTISED) -> torch.Tensor:
    """[2 * inner, EXPERT_WIDTH] float32: W1, and W3 below it."""
    if kind != UNQUANTISED:
        both = quantised_experts.gates_and_ups(kind, expert)
        return torch.cat([each.whole() for each in both]).float()
    found = torch.zeros(2 * INTERMEDIATE, EXPERT_WIDTH)
    found[:, :OWN] = quarters(9700 + 2 * expert, 2 * INTERMEDIATE, OWN)
    return found


def down_weight(expert: int, kind: str = UNQUANTISED) -> torch.Tensor:
    """[EXPERT_WIDTH, inner] float32: W2."""
    if kind != UNQUANTISED:
        return quantised_experts.down(kind, expert).whole().float()
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
    return INTERMEDIATE if config.expert_quantisation == UNQUANTISED else quantised_experts.INNER


def has_biases(config: EngineConfig) -> bool:
    """Whether router and experts have biases."""
    return config.expert_activation == "clamped_swiglu"


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


def named_experts(config: EngineConfig) -> int:
    """How many experts a token has a number and a weight of."""
    return config.experts_per_token + (config.shared_experts == "fused")


def rank_sizes(batch: Batch, config: EngineConfig) -> list[int]:
    """Tokens of each data-parallel rank: one of each row, in a verify one of each draft."""
    width = config.draft_tokens if "target_verify" in config.modes else 1
    return [rows * width for rows in batch.rank_sizes.tolist()]


def tokens_of_ranks(batch: Batch, config: EngineConfig) -> list[IntArray]:
    """int64 [tokens] of each data-parallel rank: the batch's at its place; those of the others are
    drawn by step, rank and place, for a batch names only how many there are."""
    found = []
    for rank, tokens in enumerate(rank_sizes(batch, config)):
        places = np.arange(tokens, dtype=np.uint64)
        drawn = hash_counters(10_000 + 100 * batch.step + rank, places) % np.uint64(VOCAB)
        found.append(batch.input_ids if rank == config.dp_rank else drawn.astype(np.int64))
    return found


def chosen_experts(batch: Batch, config: EngineConfig) -> IntArray:
    """int64 [num_tokens, experts_per_token] of each new token, the preferred one first."""
    return experts_of_tokens(config)[batch.input_ids]


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


@lru_cache(maxsize=64)
def _weights(expert: int, kind: str, dtype: torch.dtype) -> tuple[torch.Tensor, torch.Tensor]:
    """What an expert reads of the columns that are not attention's; and W2."""
    read = gate_up_weight(expert, kind)[:, : EXPERT_WIDTH - ATTENDED]
    return read.to(dtype), down_weight(expert, kind).to(dtype)


@lru_cache(maxsize=4)
def _rows(kind: str, dtype: torch.dtype) -> torch.Tensor:
    return token_rows(kind).to(dtype)


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


def expert_weights(token: int, config: EngineConfig) -> torch.Tensor:
    """float64 [experts_per_token] of a token's experts."""
    if config.expert_scoring == "softmax":
        numbers = -_gap(token) * torch.arange(config.experts_per_token, dtype=torch.float64)
        return numbers.softmax(0)
    parts = _sigmoids(config.num_experts)[token, experts_of_tokens(config)[token]]
    return SIGMOID_SCALE * parts / parts.sum()


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


def expert_coarseness(config: EngineConfig, dtype: torch.dtype) -> float:
    """How far the layer itself may be from the truth: engines round between its two products, after
    the weight and after the sum."""
    if config.expert_quantisation != UNQUANTISED:  # between the products nothing rounds
        return float(torch.finfo(dtype).eps) * quantised_experts.largest_result()
    experts = SIGMOID_SCALE if config.expert_scoring == "sigmoid" else 1.0
    experts += config.shared_experts != "none"
    return 2 * float(torch.finfo(dtype).eps) * experts * _LARGEST[config.expert_activation]
