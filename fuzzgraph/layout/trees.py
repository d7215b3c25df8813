"""Draft trees of speculative decoding."""

from __future__ import annotations

from functools import lru_cache

import numpy as np

from fuzzgraph.splitmix import hash_counters


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
