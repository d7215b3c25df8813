"""What a draft model gives behind attention, from the logical batch: hidden states, logits, tokens.

Sources: sglang EagleDraftWorker._draft_extend_for_decode (the last accepted token of each row is
sampled from, its hidden state goes on to the draft), draft_forward and organize_draft_results (each
step takes the hidden state of the one before; parents and scores of a chain are constants).
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for, next_token
from fuzzgraph.draft_head import head_weight, next_hidden
from fuzzgraph.world import Batch


def draft_model_outputs(
    attended: torch.Tensor, batch: Batch, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """The outputs of a draft model of one layer; {} in other modes, or where branches share a row.

    Args:
        attended: attention of the step as `reference.expected` has it, in any dtype.
    """
    if batch.mode == "draft_extend":
        return _extended(attended.flatten(1), batch, config)
    if batch.mode == "draft" and config.spec_topk == 1:
        return _drafted(attended.flatten(1), batch, config)
    return {}


def _extended(
    attended: torch.Tensor, batch: Batch, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """Of the last accepted token of each row that has one."""
    last = torch.from_numpy(batch.new_lens.cumsum()[batch.new_lens > 0] - 1)
    tokens = torch.from_numpy(batch.input_ids)[last]
    given = content_for(config).hidden_states(tokens, torch.from_numpy(batch.positions)[last])
    predicted = next_token(tokens, 0, 0)
    hidden = next_hidden(attended[last], given, predicted)
    return {
        "hidden_states": hidden,
        "next_token_logits": hidden @ head_weight(config, hidden.dtype).T,
        "topk_index": predicted[:, None],
    }


def _drafted(attended: torch.Tensor, batch: Batch, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Of each step of a chain, by row and step; and the chain."""
    steps = config.spec_steps
    tokens = torch.from_numpy(batch.input_ids)
    hidden = content_for(config).hidden_states(tokens, batch.positions)
    found = []
    for step, attention in enumerate(attended.view(-1, steps, attended.shape[1]).unbind(1)):
        predicted = next_token(tokens, step, 0)
        hidden = next_hidden(attention, hidden, predicted)
        found.append(hidden)
        tokens = predicted
    order = torch.arange(-1, steps).expand(batch.raw_bs, -1)
    return {
        "hidden_states": torch.stack(found, 1).flatten(0, 1),
        "first_tokens": torch.from_numpy(batch.input_ids),
        "parent_list": order,
        "top_scores_index": order + 1,
    }
