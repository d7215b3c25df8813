"""What stays behind a verify of drafted blocks, from the logical batch: lengths, tokens, context.

Sources: sglang DFlashWorkerV2.forward_batch_generation (steps 2 and 3: drafts stay up to the first
one that the target model does not predict, and the token that it predicts there follows; keys and
values of the tokens that stay are made of their hidden states) and _append_target_hidden_to_draft_
kv_by_loc (nothing else of the drafting model's pool is written). Where requests have temperatures,
what stays of them is drawn (`reference.sampled`).
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.draft_head import context_heads, context_rows, placed_keys
from fuzzgraph.reference.sampled import accepted, temperatures
from fuzzgraph.world import Batch, IntArray

COMMITS = 4
"""Columns of `commits`."""
NO_TOKEN = -1
"""In `committed_tokens`, behind those that stay."""


def context_shape(config: EngineConfig) -> tuple[int, int, int]:
    """Of what is kept of a token: keys and values, heads, columns."""
    return (2, context_heads(config), config.v_head_dim)


def committed_outputs(
    attended: torch.Tensor, batch: Batch, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """The outputs behind a verify of chains; {} in other steps.

    commits [raw_bs, 4]: tokens that stay, the length with them, the token that follows, and how
    many other slots of the drafting model's pool changed; committed_tokens [num_tokens]: those
    that were found, and NO_TOKEN behind them; draft_context [num_tokens, *context_shape]: keys and
    values of the tokens that stay, zeros of the others.

    Args:
        attended: [num_tokens, Hq, Dv] attention as `reference.expected` has it, in any dtype.
    """
    if batch.mode != "target_verify" or config.drafted_blocks != "none" or config.spec_topk > 1:
        return {}
    counts, follows, found = _committed(batch, config)
    ends = np.cumsum(batch.new_lens)
    starts = ends - batch.new_lens
    stays = np.arange(batch.num_tokens) - starts[batch.token_rows] < counts[batch.token_rows]
    kept = torch.from_numpy(stays)[:, None, None, None].to(attended.dtype)
    keys = placed_keys(context_rows(attended), torch.from_numpy(batch.positions))
    columns = (counts, batch.cached_lens + counts, follows, np.zeros_like(counts))
    return {
        "commits": torch.from_numpy(np.stack(columns, 1)),
        "committed_tokens": torch.from_numpy(np.where(stays, found, NO_TOKEN)),
        "draft_context": torch.stack((keys, context_rows(attended)), 1) * kept,
    }


def _committed(batch: Batch, config: EngineConfig) -> tuple[IntArray, IntArray, IntArray]:
    """[raw_bs] tokens that stay, [raw_bs] token that follows, and [num_tokens] tokens that were
    found: those that stay, each at the place of the one before it."""
    starts = np.cumsum(batch.new_lens) - batch.new_lens
    counts = batch.stayed_lens - batch.cached_lens
    if config.sampling == "greedy":
        return counts, batch.predicted[starts + counts - 1], batch.predicted
    drawn, drawn_last = accepted(batch, config)
    draws = temperatures(batch) > 0
    counts = np.where(draws, 1 + drawn, counts)
    follows = np.where(draws, drawn_last, batch.predicted[starts + counts - 1])
    # Drafts that stay are what was found, whether the target model predicts them or not.
    drafts = np.append(batch.input_ids[1:], NO_TOKEN)
    found: IntArray = np.where(draws[batch.token_rows], drafts, batch.predicted)
    found[starts + counts - 1] = follows
    return counts, follows, found
