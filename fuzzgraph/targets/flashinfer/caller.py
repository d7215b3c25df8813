"""What a server hands FlashInfer for a batch that it has padded to the size of a graph.

FlashInfer says nothing about padded rows. Two servers fill them in two ways, and a config's fill
value chooses: with 1 a padded row computes and reads the reserved page (sglang
flashinfer_backend.py, whose requests of length 1 lie in the pool's padding row); with 0 it has no
keys and, where rows have several queries, no queries (vLLM v1/attention/backends/flashinfer.py).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.world import RESERVED_PAGE, Batch, IntArray

__all__ = ["Paged", "captured_batch", "padded_batch", "padded_keys"]


@dataclass(frozen=True, slots=True)
class Paged:
    """A batch as the wrappers' plans take it; int32 on the host."""

    qo_indptr: torch.Tensor
    """[rows + 1]"""
    kv_indptr: torch.Tensor
    """[rows + 1] in pages."""
    kv_indices: torch.Tensor
    """[pages]"""
    last_page_len: torch.Tensor
    """[rows]; 0 for a row without keys."""
    kv_lens: torch.Tensor
    """[rows] in tokens."""
    mask: torch.Tensor | None
    """bool [sum of queries * keys] where a query sees a key; None where a triangle says it."""


def queries_each(config: EngineConfig) -> int:
    """Queries of a row that a graph was captured with."""
    return config.draft_tokens if config.modes == ("target_verify",) else 1


def padded_keys(config: EngineConfig) -> int:
    """Keys of a padded row: the fill value, and what the row computes beyond it."""
    if not config.seq_len_fill_value:
        return 0
    return 1 if config.modes == ("decode",) else 1 + queries_each(config)


def padded_batch(batch: Batch, config: EngineConfig, rows: int) -> Paged:
    """The batch, and behind it what padded rows are given, up to `rows` rows."""
    padding = rows - batch.raw_bs
    queries = queries_each(config)
    if not config.seq_len_fill_value and config.modes != ("decode",):
        queries = 0
    lens = np.append(batch.seq_lens, np.full(padding, padded_keys(config)))
    new_lens = np.append(batch.new_lens, np.full(padding, queries))
    pages = [batch.pages.row(row) for row in range(batch.raw_bs)]
    trees = None if config.spec_topk == 1 else batch.tree_parents
    return _paged(lens, new_lens, pages, config.page_size, trees)


def captured_batch(config: EngineConfig, rows: int) -> Paged:
    """What a graph is captured with: no requests, and each row has its queries."""
    queries = queries_each(config)
    keys = 1 if config.modes == ("decode",) else 1 + queries
    trees = None if config.spec_topk == 1 else np.zeros((0, 0), dtype=np.int64)
    lens, new_lens = np.full(rows, keys), np.full(rows, queries)
    return _paged(lens, new_lens, [], config.page_size, trees)


def _paged(
    lens: IntArray,
    new_lens: IntArray,
    pages: list[IntArray],
    page_size: int,
    trees: IntArray | None,
) -> Paged:
    counts = -(-lens // page_size)
    padding = np.full(int(counts[len(pages) :].sum()), RESERVED_PAGE)
    listed = [row[:count] for row, count in zip(pages, counts, strict=False)]
    return Paged(
        _int32(_offsets(new_lens)),
        _int32(_offsets(counts)),
        _int32(np.concatenate([*listed, padding])),
        _int32(np.where(lens > 0, (lens - 1) % page_size + 1, 0)),
        _int32(lens),
        None if trees is None else _mask(lens, new_lens, trees),
    )


def _offsets(lens: IntArray) -> IntArray:
    return np.append(0, np.cumsum(lens))


def _int32(values: IntArray) -> torch.Tensor:
    return torch.from_numpy(values.astype(np.int32))


def _mask(lens: IntArray, new_lens: IntArray, trees: IntArray) -> torch.Tensor:
    """A draft sees the past, itself, and what it follows; a padded row's see all."""
    parts = []
    for row, (keys, queries) in enumerate(zip(lens.tolist(), new_lens.tolist(), strict=True)):
        seen = np.ones((queries, keys), dtype=bool)
        if row < len(trees):
            seen[:, keys - queries :] = _ancestors(trees[row].tolist())
        parts.append(seen.ravel())
    return torch.from_numpy(np.concatenate(parts))


def _ancestors(parents: list[int]) -> np.ndarray:
    """[drafts, drafts] whether a draft is another one's, or that one itself."""
    seen = np.eye(len(parents), dtype=bool)
    for draft, parent in enumerate(parents):
        if parent >= 0:
            seen[draft] |= seen[parent]
    return seen
