"""Latent caches in scattered pages, and what attention over them is, by `dense_attention`."""

from __future__ import annotations

import torch

from tests.kernel_models.dense import dense_attention

WIDTH, VALUE, HEADS = 6, 4, 3
"""Columns of a row and of its value, query heads."""


def ints(*values: int) -> torch.Tensor:
    return torch.tensor(values, dtype=torch.int32)


def scattered(lens: list[int], page: int, columns: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """(cache [pages, page, 1, WIDTH], int32 table [rows, at least `columns`])."""
    torch.manual_seed(1)
    width = max(1, columns, max(-(-n // page) for n in lens))
    pages = 1 + width * len(lens)
    table = (torch.randperm(pages - 1)[: width * len(lens)] + 1).view(len(lens), width)
    return torch.randn(pages, page, 1, WIDTH), table.int()


def wanted(
    q: torch.Tensor,
    cache: torch.Tensor,
    table: torch.Tensor,
    lens: list[int],
    *,
    causal: bool,
    scale: float,
) -> tuple[torch.Tensor, torch.Tensor]:
    """([B, L, Hq, VALUE], [B, Hq, L]) attention and sums of queries [B, L, Hq, WIDTH]."""
    outs, sums = [], []
    for row, length in enumerate(lens):
        keys = cache[table[row].long()].flatten(0, 1)[:length]
        tokens = q.shape[1]
        at = length - tokens + torch.arange(tokens)[:, None]
        visible = (torch.arange(length)[None, :] <= at) | torch.tensor(not causal)
        out, lse = dense_attention(q[row], keys, keys[..., :VALUE], visible, scale=scale)
        outs.append(out)
        sums.append(lse)
    return torch.stack(outs), torch.stack(sums)
