"""The tokens of all data-parallel ranks, of which a batch holds those of one."""

from __future__ import annotations

import numpy as np

from fuzzgraph.case import EngineConfig
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB, Batch, IntArray


def rank_sizes(batch: Batch, config: EngineConfig) -> list[int]:
    """Tokens of each data-parallel rank: one of each row, in a verify one of each draft."""
    width = config.draft_tokens if "target_verify" in config.modes else 1
    return [rows * width for rows in batch.rank_sizes.tolist()]


def tokens_of_ranks(batch: Batch, config: EngineConfig) -> list[IntArray]:
    """int64 [tokens] of each data-parallel rank: the batch's at its place; those of the others are
    drawn by step, rank and place, for a batch names only how many there are."""
    found = []
    for rank, tokens in enumerate(rank_sizes(batch, config)):
        places = np.arange(tokens, dtype=np.uint64)
        drawn = hash_counters(10_000 + 100 * batch.step + rank, places) % np.uint64(VOCAB)
        found.append(batch.input_ids if rank == config.dp_rank else drawn.astype(np.int64))
    return found
