"""Drafts in a tree, as layers with a state see them: the state of a node goes on from its parent's.

A path is what a request would have if all of its drafts but those from the root to one node were
rejected. What such layers compute of a node is what they compute of the last token of its path.
Sources: sglang causal_conv1d_triton.py (`retrieve_next_token`, `retrieve_next_sibling`) and
fused_recurrent.py (`retrieve_parent_token`).
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from fuzzgraph.world import Batch, IntArray, Ragged


def by_path(batch: Batch) -> Batch:
    """The same step with a row of its own for each draft, whose tokens are what was cached of its
    request and the drafts of its path. Tokens alone are by row then; position i of a path is its
    draft's own."""
    found = []
    for row, start in enumerate(np.cumsum(batch.new_lens) - batch.new_lens):
        cached = batch.kv_tokens.row(row)[: batch.cached_lens[row]]
        drafts = batch.input_ids[start : start + batch.new_lens[row]]
        found += [np.append(cached, drafts[path]) for path in _paths(batch, row)]
    values = np.concatenate(found) if found else batch.kv_tokens.values[:0]
    offsets = np.append(0, np.cumsum([len(each) for each in found])).astype(np.int64)
    return replace(batch, kv_tokens=Ragged(values, offsets), token_rows=np.arange(batch.num_tokens))


def kept_paths(batch: Batch) -> list[list[int]]:
    """[raw_bs] the nodes of each row that stay, in order: those from the root to one of them.

    Which one that is follows from step and request alone, as there is no sampler that could say.
    """
    count = int(batch.new_lens.max(initial=1))
    last = (batch.step + batch.requests) % count
    return [_paths(batch, row)[node] for row, node in enumerate(last.tolist())]


def kept_places(batch: Batch) -> IntArray:
    """[raw_bs] the last of them by its place among the tokens of all rows."""
    starts = np.cumsum(batch.new_lens) - batch.new_lens
    last = [path[-1] for path in kept_paths(batch)]
    found: IntArray = starts + np.array(last, dtype=np.int64)
    return found


def children(batch: Batch, drafts: int) -> tuple[IntArray, IntArray]:
    """[raw_bs, drafts] the first child of each node and its next sibling, -1 for none (sglang
    eagle_utils.cu build_tree_efficient). A batch without rows has no trees."""
    first, sibling = (np.full((batch.raw_bs, drafts), -1, dtype=np.int64) for _ in range(2))
    for row, above in enumerate(() if batch.tree_parents is None else batch.tree_parents):
        for node in range(len(above) - 1, 0, -1):
            sibling[row, node] = first[row, above[node]]
            first[row, above[node]] = node
    return first, sibling


def _paths(batch: Batch, row: int) -> list[list[int]]:
    """The nodes of each path of a row, a path for each of its drafts."""
    assert batch.tree_parents is not None
    found: list[list[int]] = []
    for node, parent in enumerate(batch.tree_parents[row].tolist()):
        found.append([*(found[parent] if parent >= 0 else []), node])
    return found
