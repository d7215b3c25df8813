"""Copies of what draft runners hand out and their models computed, by the names of outputs."""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.draft_head import LOGITS
from fuzzgraph.targets.offline.demands import demand_rows
from fuzzgraph.targets.sglang.forward_batch.draft import select_index
from fuzzgraph.world import Batch

CHAIN = ("draft_tokens", "first_tokens", "parent_list", "top_scores_index")
TREE = ("tree_parents", "tree_scores_index", "tree_tokens")
_ORDERS = (("drafted_parents", "drafted_scores"), ("parent_list", "top_scores_index"))
"""Parents and scores of a row, by how many of its tokens were not predicted."""
_WORKER = "the draft worker"


def chain_in(handed_out: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """Parents, scores, and the tokens with those given, of drafts of one branch."""
    tokens = demand_rows(handed_out[2], batch.raw_bs, "tokens", _WORKER)
    found = drafted_in(handed_out, batch, 1)
    return {**found, "first_tokens": tokens[:, 0].clone()}


def tree_in(handed_out: Any, batch: Batch) -> dict[str, torch.Tensor]:
    """Parents, places and tokens of drafts of several branches."""
    names = zip(TREE, handed_out, strict=False)
    return {name: demand_rows(each, batch.raw_bs, name, _WORKER).clone() for name, each in names}


def drafted_names(given: int) -> tuple[str, ...]:
    """What `drafted_in` gives."""
    return "draft_tokens", *_ORDERS[given]


def drafted_in(handed_out: Any, batch: Batch, given: int) -> dict[str, torch.Tensor]:
    """Parents, scores and predicted tokens of drafts of one branch.

    Args:
        given: how many at the front of a row were not predicted, 0 or 1.
    """
    parents, scores, tokens = (
        demand_rows(each, batch.raw_bs, name, _WORKER)
        for each, name in zip(handed_out, ("parents", "scores", "tokens"), strict=False)
    )
    values = (tokens[:, given:].flatten(), parents, scores)
    names = drafted_names(given)
    return {name: value.clone() for name, value in zip(names, values, strict=True)}


def sampled_from(
    handed_out: Any, batch: Batch, width: int, *, picked: bool
) -> dict[str, torch.Tensor]:
    """Of the last accepted token of each row that has one.

    Args:
        width: places of a row.
        picked: whether it hands out that token's only. Otherwise the worker picks (sglang
            EagleDraftWorker._draft_extend_for_decode).
    """
    rows = batch.raw_bs * (1 if picked else width)
    taken = torch.arange(rows) if picked else select_index(batch, width)
    taken = taken[torch.tensor(batch.new_lens > 0)]
    # Later runners leave sampling, and with it the last name, to the worker.
    names = ("hidden_states", "next_token_logits", "topk_index")
    handed = {name: getattr(handed_out, name, None) for name in names}
    return {
        name: demand_rows(value, rows, name, _WORKER)[taken]
        for name, value in handed.items()
        if value is not None
    }


def sampled_from_nothing(hidden: torch.Tensor) -> dict[str, torch.Tensor]:
    """The same of a batch without tokens. A server accepts one at least; the engine's processor
    would take the last of none."""
    logits = torch.zeros(0, LOGITS, device=hidden.device)
    return {"hidden_states": hidden[:0].clone(), "next_token_logits": logits}
