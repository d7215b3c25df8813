"""Draft trees: which draft token may see which."""

from __future__ import annotations

import numpy as np

from fuzzgraph.world import IntArray


def ancestors(parents: IntArray | None, window: int = 0) -> IntArray | None:
    """[rows, draft, draft] 1 where a token sees another: itself, its parent, and so on.

    Args:
        parents: [rows, draft] parent of each token, -1 for the root; parents come first.
        window: how many levels up a token sees at most; 0 means all.

    >>> ancestors(np.array([[-1, 0, 0]])).tolist()
    [[[1, 0, 0], [1, 1, 0], [1, 0, 1]]]
    """
    if parents is None:
        return None
    rows, width = parents.shape
    seen = np.zeros((rows, width, width), dtype=np.int64)
    depth = np.zeros((rows, width), dtype=np.int64)
    every = np.arange(rows)
    for token in range(width):
        parent = parents[:, token]
        has = parent >= 0
        inherited = seen[every, parent] * has[:, None]
        seen[:, token] = inherited
        seen[:, token, token] = 1
        depth[:, token] = np.where(has, depth[every, parent] + 1, 0)
    if window:
        seen *= depth[:, :, None] - depth[:, None, :] <= window
    return seen
