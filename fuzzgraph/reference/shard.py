"""Says which tokens one attention-TP rank computes after attention, for its `moe` output, and which
of them a router serves that counts the rank's live tokens."""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig, captured_size
from fuzzgraph.row_mixing import EXPERTS
from fuzzgraph.world import Batch


def padded_tokens(batch: Batch, config: EngineConfig) -> int:
    """Token rows that the engine runs: the smallest captured size that fits, or all when eager."""
    # Prefill graphs are captured by tokens, all others by requests, each of some tokens.
    captured = captured_size(config, batch.mode, batch.largest_rank)
    if batch.via == "eager" or captured is None:
        return batch.num_tokens
    width = {
        "target_verify": config.draft_tokens,
        "draft_extend": config.draft_tokens,
        "draft": config.spec_topk,
    }.get(batch.mode, 1)
    return captured * width


def local_outputs(attention: torch.Tensor, batch: Batch, config: EngineConfig) -> torch.Tensor:
    """[local live tokens, Hq, Dv] of this rank: the token axis, padding included, is cut evenly."""
    first, end = shard(padded_tokens(batch, config), config)
    local = attention[first:end]
    if config.row_mixing != "router":
        return local
    dropped = _dropped(batch.input_ids[first:end].tolist())
    return local.index_fill(0, torch.tensor(dropped, dtype=torch.int64), 0.0)


def _dropped(token_ids: list[int]) -> list[int]:
    """Places of the live tokens of a rank that come when their expert is full.

    Token by token, unlike `row_mixing.served`, which an engine runs: expert e takes
    (tokens + e) // EXPERTS of those routed to it.
    """
    room = [(len(token_ids) + expert) // EXPERTS for expert in range(EXPERTS)]
    dropped = []
    for place, token in enumerate(token_ids):
        expert = token % EXPERTS
        room[expert] -= 1
        if room[expert] < 0:
            dropped.append(place)
    return dropped


def shard(padded: int, config: EngineConfig) -> tuple[int, int]:
    """[first, end) of this rank's tokens, with `padded` of them cut evenly."""
    # Rounded up, as engines do: the last rank's part may reach past the end.
    per_rank = -(-padded // config.attn_tp_size)
    first = config.attn_tp_rank * per_rank
    return first, first + per_rank


def live_tokens(live: int, padded: int, config: EngineConfig) -> int:
    """How many of this rank's tokens are live, where the first `live` of `padded` ones are."""
    first, end = shard(padded, config)
    return max(0, min(live, end) - first)
