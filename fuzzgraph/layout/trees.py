"""Draft trees of speculative decoding, and the branches that a draft model adds to."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

from fuzzgraph.case import BatchRow, Case
from fuzzgraph.content import token_ids
from fuzzgraph.layout.streams import BRANCHES, ints
from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import IntArray


@lru_cache(maxsize=512)
def draft_tree(draft_tokens: int, topk: int, key: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(parents, depths) of a draft tree with at most `topk` children at a node.

    `key` picks one of many; with topk 1 it is always the chain.
    """
    draws = hash_counters(key, np.arange(draft_tokens, dtype=np.uint64)).tolist()
    parents, depths = [-1], [0]
    room = [topk]
    for token in range(1, draft_tokens):
        open_nodes = [node for node in range(token) if room[node]]
        parent = open_nodes[draws[token] % len(open_nodes)] if topk > 1 else token - 1
        room[parent] -= 1
        room.append(topk)
        parents.append(parent)
        depths.append(depths[parent] + 1)
    return tuple(parents), tuple(depths)


def draft_trees(case: Case, index: int, rows: Sequence[BatchRow]) -> tuple[IntArray, IntArray]:
    """(parents, depths) of each row's drafts in a verify, both [raw_bs, draft_tokens].

    Chains where a draft has one branch; a row of those may have fewer drafts.
    """
    count, topk = case.config.draft_tokens, case.config.spec_topk
    # 97 trees are plenty, and so few are computed once.
    keys = [(case.seed + 31 * index + 7 * row.request) % 97 for row in rows]
    trees = np.array([draft_tree(count, topk, key if topk > 1 else 0) for key in keys])
    parents, depths = trees.reshape(-1, 2, count).swapaxes(0, 1).astype(np.int64)
    return parents, depths


def branch_tokens(case: Case, rows: Sequence[BatchRow]) -> tuple[IntArray, IntArray]:
    """(tokens that a draft adds to, their positions), by row and branch."""
    topk = case.config.spec_topk
    streams = ints([row.request for row in rows])[:, None] + BRANCHES * (1 + np.arange(topk))
    starts = ints([row.seq_len for row in rows])
    input_ids = token_ids(case.seed, streams, starts[:, None]).ravel()
    return input_ids, np.repeat(starts, topk)
