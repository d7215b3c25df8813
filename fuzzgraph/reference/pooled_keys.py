"""What a layer that selects blocks by pooled keys sees, and what it leaves for later steps.

Everything is computed from the case's tokens in float64, by the definition (see `pooled_blocks`).
The harness writes a step's past before each run, so what a step leaves is looked at when it ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import content_for
from fuzzgraph.pooled_blocks import FIRST_BLOCKS, NEWEST_BLOCKS, Level, levels
from fuzzgraph.reference.geometry import Queries, queries_of
from fuzzgraph.world import Batch, IntArray

__all__ = [
    "POOLED_KEYS",
    "POOLED_STRAYS",
    "POOLED_UNIT",
    "block_scores",
    "completed",
    "in_units",
    "pooled_outputs",
    "pooled_rows",
    "scores_of_query",
    "selected_keys",
]

Floats = npt.NDArray[np.float64]

POOLED_KEYS = "pooled_keys"
"""[raw_bs, levels * KV heads * head_dim] int64, the pooled keys that a row's new token completes in
units of `POOLED_UNIT`, zeros where it completes none."""
POOLED_UNIT = 2.0**-12
"""Of which pooled keys, which are exact, are multiples."""
POOLED_STRAYS = "pooled_strays"
"""[raw_bs] in each row how many others of all pooled keys a step has changed."""


def pooled_rows(keys: torch.Tensor, level: Level) -> torch.Tensor:
    """[n, heads, D] float64 the pooled keys of a row of keys, as the model's dtype keeps them.

    Args:
        keys: [L, heads, D] in the model's dtype.
    """
    count = level.count(len(keys))
    if not count:
        return keys[:0].double()
    windows = keys.double().unfold(0, level.size, level.stride)
    return windows.mean(-1).to(keys.dtype).double()


def completed(length: int, level: Level) -> bool:
    """Whether the newest key of a row of this length is the last one of a pooled key."""
    return level.count(length) > level.count(length - 1)


def block_scores(
    q: torch.Tensor, fine: torch.Tensor, coarse: torch.Tensor, length: int, block: int
) -> Floats:
    """[heads, blocks] what a query thinks of blocks; infinite for those that it always selects.

    A finer key counts as much as the weights that all query heads of a KV head give it, in units of
    a softmax over the coarser ones; a block as much as the best of the keys that lie in it, and
    those that begin before it and end in it, or begin in it and end behind it.

    Args:
        q: float64 [heads, query heads of each, D], scaled.
        fine, coarse: float64 [n, heads, D] pooled keys.
        length: keys of the row.
    """
    logits = torch.einsum("hgd,nhd->hgn", q, fine)
    unit = torch.logsumexp(torch.einsum("hgd,nhd->hgn", q, coarse), dim=-1, keepdim=True)
    of_keys = (logits - unit).exp().sum(1)
    each = 4  # finer keys that begin in a block
    blocks, newest = -(-length // block), (length - 1) // block
    found = np.full((len(q), blocks), -np.inf)
    for at in range(blocks):
        inside = of_keys[:, max(0, each * at - 1) : each * at + each]
        forced = at < FIRST_BLOCKS or at > newest - NEWEST_BLOCKS
        if forced:
            found[:, at] = np.inf
        elif inside.numel():
            found[:, at] = inside.amax(1).numpy()
    return found


@lru_cache(maxsize=4)
def selected_keys(batch: Batch, config: EngineConfig) -> npt.NDArray[np.bool_]:
    """[T, KV heads, L] whether a query sees a key: those of its blocks, or all of a short row."""
    found = queries_of(batch, config)
    visible = np.repeat(found.visible[:, None], config.num_kv_heads, axis=1)
    for at, length in enumerate(found.visible.sum(1).tolist()):
        if length >= config.dense_len:
            kept = _kept_blocks(scores_of_query(found, at, config), config.index_topk)
            visible[at, :, :length] &= np.repeat(kept, config.pooled_block, 1)[:, :length]
    return visible


def scores_of_query(found: Queries, at: int, config: EngineConfig) -> Floats:
    """`block_scores` of one query of a batch, by the keys that it sees."""
    content, length = content_for(config), int(found.visible[at].sum())
    keys = content.kv_planes(found.key_tokens[at, :length], found.key_positions[at, :length])[0]
    fine, coarse = (pooled_rows(keys, level) for level in levels(config))
    q, _, _ = content.embed_qkv(
        torch.from_numpy(found.tokens[at : at + 1]), torch.from_numpy(found.positions[at : at + 1])
    )
    q = q.double().view(config.num_kv_heads, -1, config.head_dim) * config.head_dim**-0.5
    return block_scores(q, fine, coarse, length, config.pooled_block)


def _kept_blocks(scores: Floats, count: int) -> npt.NDArray[np.bool_]:
    """[heads, blocks] the best `count` of each head."""
    best = np.argsort(-scores, axis=1, kind="stable")[:, :count]
    kept = np.zeros(scores.shape, dtype=bool)
    np.put_along_axis(kept, best, True, axis=1)
    return kept


def pooled_outputs(batch: Batch, config: EngineConfig) -> dict[str, torch.Tensor]:
    """What a step leaves of pooled keys, which are exact."""
    if not config.pooled_block:
        return {}
    width = config.num_kv_heads * config.head_dim
    left = torch.zeros(batch.raw_bs, len(levels(config)), width, dtype=torch.int64)
    for row, number, keys in _completed_keys(batch, config):
        left[row, number] = in_units(pooled_rows(keys, Level(len(keys), 1)).flatten())
    return {
        POOLED_KEYS: left.flatten(1),
        POOLED_STRAYS: torch.zeros(batch.raw_bs, dtype=torch.int64),
    }


def in_units(keys: torch.Tensor) -> torch.Tensor:
    """Pooled keys in units of `POOLED_UNIT`; what is no number is no such key either."""
    return (keys.double() / POOLED_UNIT).nan_to_num(nan=2.0**40).round().long()


def _completed_keys(batch: Batch, config: EngineConfig) -> Iterator[tuple[int, int, torch.Tensor]]:
    """(row, level, the keys of the pooled key) for each that a step completes."""
    for row, length in enumerate(batch.seq_lens.tolist()):
        for number, level in enumerate(levels(config)):
            if completed(length, level):
                yield row, number, _last_keys(batch, config, row, level.size)


def _last_keys(batch: Batch, config: EngineConfig, row: int, count: int) -> Any:
    tokens: IntArray = batch.kv_tokens.row(row)[-count:]
    return content_for(config).kv_planes(tokens, batch.kv_positions.row(row)[-count:])[0]
