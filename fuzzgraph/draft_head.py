"""What stands behind attention in a draft model: its hidden states and logits.

A hidden state is put together, not computed: the token's attention, the front part of the hidden
state that the model was given for it, and a mark of the token that it predicts. Logits pick columns
of it. So nothing behind attention rounds, in no dtype; a row, a hidden state or a logit of another
token shows; and the predicted token has the largest logit by far.
"""

from __future__ import annotations

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import hidden_width
from fuzzgraph.world import VOCAB

__all__ = ["LOGITS", "head_weight", "next_hidden"]

LOGITS = 2 * VOCAB
"""Columns of the logits: one for each token, and as many picked from the hidden state."""
_MARK = 32.0
"""Logit of the predicted token. Larger than all others: what the model computes is within 8."""


def next_hidden(
    attended: torch.Tensor, given: torch.Tensor, predicted: torch.Tensor
) -> torch.Tensor:
    """The model's hidden states; torch operations without a host read, so that a graph can hold it.

    Args:
        attended: [tokens, Hq * Dv] attention.
        given: [tokens, hidden_width] hidden states that came with the tokens.
        predicted: [tokens] ids.
    """
    ids = torch.arange(VOCAB, device=predicted.device)
    mark = (predicted[:, None] == ids).to(attended.dtype) * _MARK
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
