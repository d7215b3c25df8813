"""The recurrence of the delta rule whose keys are unit vectors, token by token in float64."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch

from fuzzgraph.world import Batch, IntArray

LONGEST_ROW = 256
"""Tokens of a request at most: their states are all kept while one of them is asked for."""

OfTokens = Callable[[torch.Tensor], torch.Tensor]
"""float64 [tokens + 1, heads, columns of a value, channels of a key]: the state before the first of
a request's tokens and behind each."""


def states_of_tokens(
    keys: torch.Tensor, decays: torch.Tensor, betas: torch.Tensor, values: torch.Tensor
) -> torch.Tensor:
    """`state = decay state; state = state + beta (value - state key) key^T` of one request.

    Args:
        keys: [tokens] channel at which each token's key is 1.
        decays: [tokens, heads, channels].
        betas: [tokens, heads].
        values: [tokens, heads, columns].

    Returns:
        As `OfTokens` says.
    """
    tokens, heads, columns = values.shape
    found = np.zeros((tokens + 1, heads, columns, decays.shape[2]))
    kept, shares, new = (each.double().numpy() for each in (decays, betas, values))
    for token, key in enumerate(keys.tolist()):
        state = found[token + 1]
        np.multiply(found[token], kept[token, :, None], out=state)
        state[:, :, key] += shares[token, :, None] * (new[token] - state[:, :, key])
    return torch.from_numpy(found)


def states_behind(
    of_tokens: OfTokens, batch: Batch, rows: IntArray, lens: IntArray
) -> torch.Tensor:
    """float64 [n, heads, columns, channels]: the state of row `rows[i]` behind its first `lens[i]`
    tokens."""
    nothing = of_tokens(torch.zeros(0, dtype=torch.int64))
    found = nothing.new_zeros(len(rows), *nothing.shape[1:])
    for row in set(rows.tolist()):
        asked = torch.from_numpy(np.flatnonzero(rows == row))
        own = torch.from_numpy(lens)[asked]
        known = of_tokens(torch.from_numpy(batch.kv_tokens.row(row)[: own.max()]))
        found[asked] = known[own]
    return found
