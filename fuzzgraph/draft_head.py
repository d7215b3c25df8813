"""What stands behind attention in a draft model: its hidden states and logits.

A hidden state is put together, not computed: the token's attention, the front part of the hidden
state that the model was given for it, and a mark of the token that it predicts. Logits pick columns
of it. So nothing behind attention rounds, in no dtype; a row, a hidden state or a logit of another
token shows; and the predicted token has the largest logit by far.

What a drafting model keeps of tokens that stay is their hidden states of the target model, and
where they stand.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import Tokens, hidden_width, next_token
from fuzzgraph.world import VOCAB

__all__ = [
    "LOGITS",
    "branch_logits",
    "branch_marks",
    "context_heads",
    "context_rows",
    "head_weight",
    "marked",
    "markov_chain",
    "markov_weights",
    "next_hidden",
    "placed_keys",
]

LOGITS = 2 * VOCAB
"""Columns of the logits: one for each token, and as many picked from the hidden state."""
_MARK = 32.0
"""Logit of the predicted token. Larger than all others: what the model computes is within 8."""
_PLACES = 128
"""Bfloat16 has every whole number up to twice this."""


def marked(predicted: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """[tokens, VOCAB] logits of a model that predicts these; no host read."""
    ids = torch.arange(VOCAB, device=predicted.device)
    return (predicted[:, None] == ids).to(dtype) * _MARK


def branch_logits(tokens: Tokens, step: int, topk: int) -> Any:
    """[tokens, topk] logits of the tokens that a model says may follow, the most likely first.

    The j-th of them is `next_token(token, step, j)`. Each is 1/4 below the one before it at least,
    a multiple of 1/8 above 26, and another one behind most other tokens.
    """
    branches = (torch if isinstance(tokens, torch.Tensor) else np).arange(topk)
    uneven = (7 * tokens[:, None] + 3 * step + 5 * branches) % 7
    return _MARK - branches - uneven / 8


def branch_marks(tokens: torch.Tensor, step: int, topk: int, dtype: torch.dtype) -> torch.Tensor:
    """[tokens, VOCAB] the same by token id; no host read."""
    ids = torch.arange(VOCAB, device=tokens.device)
    found = torch.zeros(len(tokens), VOCAB, dtype=dtype, device=tokens.device)
    logits = branch_logits(tokens, step, topk).to(dtype)
    for branch in range(topk):
        hit = next_token(tokens, step, branch)[:, None] == ids
        found = torch.where(hit, logits[:, branch, None], found)
    return found


def next_hidden(
    attended: torch.Tensor, given: torch.Tensor, predicted: torch.Tensor
) -> torch.Tensor:
    """The model's hidden states; torch operations without a host read, so that a graph can hold it.

    Args:
        attended: [tokens, Hq * Dv] attention.
        given: [tokens, hidden_width] hidden states that came with the tokens.
        predicted: [tokens] ids, or [tokens, VOCAB] marks of several.
    """
    mark = predicted if predicted.dim() == 2 else marked(predicted, attended.dtype)
    return torch.cat((attended, given[:, : attended.shape[1]].to(attended.dtype), mark), dim=-1)


def head_weight(config: EngineConfig, dtype: torch.dtype) -> torch.Tensor:
    """[LOGITS, hidden_width]: one 1 in each row.

    The first VOCAB rows pick the marks, the others columns that are spread over what lies before.
    """
    width = hidden_width(config)
    ids = torch.arange(VOCAB)
    weight = torch.zeros(LOGITS, width, dtype=dtype)
    weight[ids, width - VOCAB + ids] = 1.0
    weight[VOCAB + ids, ids * (width - VOCAB) // VOCAB] = 1.0
    return weight


def markov_weights() -> tuple[torch.Tensor, torch.Tensor]:
    """[VOCAB, VOCAB] each: what a Markov head adds to the logits behind token t is row t of the
    first, times the second transposed.

    Behind an odd token it makes one token the largest, whatever the logits are; behind an even one
    it adds less than a mark.
    """
    ids = torch.arange(VOCAB)
    first, second = torch.zeros(VOCAB, VOCAB), torch.zeros(VOCAB, VOCAB)
    first[ids, ids] = torch.where(ids % 2 == 1, _MARK * 1.5, _MARK / 4)
    second[(3 * ids + 5) % VOCAB, ids] = 1.0
    return first, second


def markov_chain(first: torch.Tensor, predicted: torch.Tensor) -> torch.Tensor:
    """[rows, drafts] tokens that such a head samples, each by the one before it, in float64.

    Args:
        first: [rows] tokens before the drafts.
        predicted: [rows, drafts] what the model without the head predicts.
    """
    before, after = (weight.to(torch.float64) for weight in markov_weights())
    chain = [first]
    for logits in (
        marked(predicted.flatten(), torch.float64).view(*predicted.shape, VOCAB).unbind(1)
    ):
        chain.append((logits + before[chain[-1]] @ after.T).argmax(-1))
    return torch.stack(chain[1:], 1)


def context_heads(config: EngineConfig) -> int:
    """Heads of what a drafting model keeps of a token that stays: those of attention, and one."""
    return config.num_q_heads + 1


def context_rows(hidden: torch.Tensor) -> torch.Tensor:
    """[tokens, context_heads, Dv] keys or values of tokens whose hidden states a target model gave.

    They are those hidden states, as one head for each of attention; the last head is zero.

    Args:
        hidden: [tokens, Hq, Dv] attention of the target model.
    """
    return torch.nn.functional.pad(hidden, (0, 0, 0, 1))


def placed_keys(keys: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
    """The same keys with their places in the last head, in the place of a rotation: a place rounds
    in no dtype.

    Args:
        keys: [tokens, context_heads, Dv], the last head zero.
        positions: [tokens].
    """
    parts = torch.stack((positions % _PLACES, positions // _PLACES), -1).to(keys.dtype)
    place = torch.nn.functional.pad(parts, (0, keys.shape[-1]))[..., None, : keys.shape[-1]]
    return torch.cat((keys[:, :-1], place), dim=1)
