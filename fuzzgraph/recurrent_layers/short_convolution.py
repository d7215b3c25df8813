"""The short convolution over the last tokens that comes before a recurrence."""

from __future__ import annotations

import torch

from fuzzgraph.world import Batch, IntArray

CONV_WIDTH = 4
"""Tokens that the convolution sees, its own included."""
NEWEST = (0.0, 0.0, 0.0, 1.0)
"""Weights that leave an input as it is."""
LAST_FOUR = (0.5, -1.0, 2.0, 1.0)
"""Weights that show what the history was."""
_EPSILON = 1e-6


def last_inputs(
    by_token: torch.Tensor,
    by_position: torch.Tensor,
    batch: Batch,
    rows: IntArray,
    lens: IntArray,
    count: int = CONV_WIDTH - 1,
) -> torch.Tensor:
    """float32 [n, count, columns]: inputs of the last `count` of the first `lens[i]` tokens of row
    `rows[i]`, the newest last, zeros where there were none.

    Args:
        by_token: [VOCAB, columns] what a token brings; by_position: [positions, columns] what its
            position adds.
    """
    found = torch.zeros(len(rows), count, by_token.shape[1])
    for entry, (row, length) in enumerate(zip(rows.tolist(), lens.tolist(), strict=True)):
        first = max(0, length - count)
        tokens = torch.from_numpy(batch.kv_tokens.row(row)[first:length])
        found[entry, count - len(tokens) :] = by_token[tokens] + by_position[first:length]
    return found


def last_token_inputs(
    by_token: torch.Tensor, batch: Batch, rows: IntArray, lens: IntArray, count: int
) -> torch.Tensor:
    """The same of a layer to which positions bring nothing."""
    ago = torch.arange(count - 1, -1, -1)
    places = torch.from_numpy(lens)[:, None] - 1 - ago
    starts = torch.from_numpy(batch.kv_tokens.offsets[rows])
    index = (starts[:, None] + places.clamp(min=0)).clamp(max=len(batch.kv_tokens.values) - 1)
    tokens = torch.from_numpy(batch.kv_tokens.values)[index]
    return by_token[tokens].masked_fill((places < 0)[..., None], 0.0)


def unit_queries(seen: torch.Tensor) -> torch.Tensor:
    """[n, columns] queries of length 1, from the last CONV_WIDTH inputs [n, CONV_WIDTH, columns]:
    convolved by LAST_FOUR, then SiLU."""
    mixed = (seen * torch.tensor(LAST_FOUR, dtype=seen.dtype)[:, None]).sum(1)
    query = torch.nn.functional.silu(mixed)
    return query / (query.square().sum(-1, keepdim=True) + _EPSILON).sqrt()
