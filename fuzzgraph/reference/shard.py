"""What one attention-TP rank computes after attention: the moe output of its tokens."""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.world import Batch

__all__ = ["local_outputs", "padded_tokens"]


def padded_tokens(batch: Batch, config: EngineConfig) -> int:
    """Token rows the engine runs: the smallest captured size that fits, or unpadded when eager."""
    if batch.mode == "prefill":
        size, ladder, width = batch.num_tokens, config.capture_tokens, 1
    else:
        size, ladder = batch.raw_bs, config.capture_bs
        width = {
            "target_verify": config.draft_tokens,
            "draft_extend": config.draft_tokens,
            "draft": config.spec_topk,
        }.get(batch.mode, 1)
    captured = [padded for padded in ladder if padded >= size]
    if batch.via == "eager" or not captured:
        return batch.num_tokens
    return captured[0] * width


def local_outputs(attention: torch.Tensor, batch: Batch, config: EngineConfig) -> torch.Tensor:
    """[local live tokens, Hq, Dv] of this rank: the token axis, padding included, is cut evenly."""
    per_rank = -(-padded_tokens(batch, config) // config.attn_tp_size)
    first = config.attn_tp_rank * per_rank
    return attention[first : first + per_rank]
