"""What a draft model gives behind attention, from the logical batch: hidden states, logits, tokens.

Sources: sglang EagleDraftWorker._draft_extend_for_decode (the last accepted token of each row is
sampled from, its hidden state goes on to the draft), draft_forward and organize_draft_results (each
step takes the hidden state of the one before; parents and scores of a chain are constants). EAGLE's
drafts run with one step more than they have predicted tokens.
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for, next_token
from fuzzgraph.draft_head import branch_marks, head_weight, markov_chain, next_hidden
from fuzzgraph.reference.draft_tree import draft_tree
from fuzzgraph.reference.sampled import block_draws
from fuzzgraph.world import Batch


def draft_model_outputs(
    attended: torch.Tensor, batch: Batch, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """The outputs of a draft model; {} in other modes, or where several branches go on apart.

    Those that begin with `unattended` are of a model without a layer, whose tokens have the front
    part of `Content.hidden_states` in the place of attention.

    Args:
        attended: attention of the step as `reference.expected` has it, in any dtype.
    """
    if config.drafted_blocks != "none":
        return _block(attended.flatten(1), batch, config)
    if batch.mode == "draft_extend":
        return _extended(attended.flatten(1), batch, config)
    if batch.mode == "draft" and config.draft_branches == "chosen":
        return _branched(attended.flatten(1), batch, config)
    if batch.mode == "draft" and config.spec_topk == 1:
        return _drafted(attended.flatten(1), batch, config)
    return {}


def _block(attended: torch.Tensor, batch: Batch, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Of all tokens of each block; drafted is behind each but the first.

    The model is given the embedding of each token, the same at all positions, and predicts by the
    token and its position. A Markov head samples at each place, the first one too or not. Sources:
    sglang DFlashWorkerV2.forward_batch_generation (noise_embedding) and _DflashDraftSampler (the
    first token of a block is known already), DsparkDraftSampler (sample_from_anchor).
    """
    tokens, positions = torch.from_numpy(batch.input_ids), torch.from_numpy(batch.positions)
    predicted = next_token(tokens, positions, 0)
    given = content_for(config).hidden_states(tokens, torch.zeros_like(positions))
    first = torch.from_numpy(batch.new_lens.cumsum() - batch.new_lens)
    drafted = torch.ones(len(tokens), dtype=torch.bool)
    drafted[first] = False
    at_each = predicted.view(batch.raw_bs, config.draft_tokens)
    chains = markov_chain(tokens[first], at_each), markov_chain(tokens[first], at_each[:, 1:])
    if config.sampling == "draft":
        drawn = block_draws(batch, config)
        chains = drawn.at_each, drawn.behind
    return {
        "block_hidden": next_hidden(attended, given, predicted),
        "block_tokens": predicted[drafted],
        "markov_tokens": chains[0].flatten(),
        "markov_drafts": chains[1].flatten(),
        "drawn_blocks": torch.ones(batch.raw_bs, dtype=torch.int64),
    }


def _extended(
    attended: torch.Tensor, batch: Batch, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """Of all accepted tokens; what a worker samples from is of each row's last one, if any.

    With several layers, each takes the token that the one before it predicts behind that.
    """
    tokens = torch.from_numpy(batch.input_ids)
    given = content_for(config).hidden_states(tokens, batch.positions)
    predicted = next_token(tokens, 0, 0)
    hidden = next_hidden(attended, given, predicted)
    alone = given[:, : attended.shape[1]].to(attended.dtype)
    last = torch.from_numpy(batch.new_lens.cumsum()[batch.new_lens > 0] - 1)
    chain = [predicted[last]]
    for _ in range(config.draft_tokens - 2):
        chain.append(next_token(chain[-1], 0, 0))
    return {
        "hidden_states": hidden[last],
        "next_token_logits": hidden[last] @ head_weight(config, hidden.dtype).T,
        "topk_index": predicted[last][:, None],
        "chained_tokens": torch.stack(chain, 1),
        "unattended_hidden": next_hidden(alone, given, predicted),
    }


def _drafted(attended: torch.Tensor, batch: Batch, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Of each step of a chain, by row and step; and the chain.

    A model without a layer drafts on the target's KV, at the position of the row's last token in
    all steps (sglang set_frozen_kv_positions).
    """
    content, steps = content_for(config), config.spec_steps
    first = tokens = torch.from_numpy(batch.input_ids)
    hidden = alone = content.hidden_states(tokens, batch.positions)
    found, unattended = [], []
    for step, attention in enumerate(attended.view(-1, steps, attended.shape[1]).unbind(1)):
        predicted = next_token(tokens, step, 0)
        hidden = next_hidden(attention, hidden, predicted)
        found.append(hidden)
        in_its_place = content.hidden_states(tokens, batch.seq_lens - 1)[:, : attention.shape[1]]
        alone = next_hidden(in_its_place.to(attention.dtype), alone, predicted)
        unattended.append(alone)
        tokens = predicted
    order = torch.arange(-1, steps).expand(batch.raw_bs, -1)
    return {
        "hidden_states": torch.stack(found, 1).flatten(0, 1),
        "unattended_hidden": torch.stack(unattended, 1).flatten(0, 1),
        "first_tokens": first,
        "parent_list": order,
        "top_scores_index": order + 1,
        "drafted_parents": order[:, : parents_of(steps)],
        "drafted_scores": order[:, 1:],
    }


def _branched(
    attended: torch.Tensor, batch: Batch, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """Of each step of several branches, by row, place and step; and what is handed out of them."""
    tree, topk, steps = draft_tree(batch, config), config.spec_topk, config.spec_steps
    tokens, followed = torch.from_numpy(tree.tokens), torch.from_numpy(tree.followed)
    first = torch.from_numpy(batch.input_ids).view(-1, topk)[:, 0]
    positions = torch.from_numpy(batch.positions).view(-1, topk)[:, 0]
    hidden = content_for(config).hidden_states(first, positions).repeat_interleave(topk, 0)
    of_rows = torch.arange(batch.raw_bs)[:, None] * topk
    at_each, found = attended.view(-1, steps, attended.shape[1]), []
    for step in range(steps):
        given = hidden[(of_rows + followed[step]).flatten()]
        marks = branch_marks(tokens[step].flatten(), step, topk, attended.dtype)
        hidden = next_hidden(at_each[:, step], given, marks)
        found.append(hidden)
    return {
        "hidden_states": torch.stack(found, 1).flatten(0, 1),
        "tree_tokens": torch.from_numpy(tree.handed_out),
        "tree_scores_index": torch.from_numpy(tree.places),
        "tree_parents": torch.from_numpy(tree.parents),
    }


def parents_of(drafted: int) -> int:
    """Parents that a worker hands out for so many drafted tokens: those of a chain's last step are
    left out, and a single step has none (sglang organize_draft_results)."""
    return drafted if drafted > 1 else 0
