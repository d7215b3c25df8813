"""Where kernels of experts have the tokens of each: in whole blocks, one expert behind another."""

from __future__ import annotations

import numpy as np

from fuzzgraph.kernel_models.memory import Ints

__all__ = ["in_blocks"]


def in_blocks(experts: Ints, count: int, block_size: int) -> tuple[Ints, Ints]:
    """(place of each entry, blocks that each expert takes).

    Args:
        experts: [entries] the expert of each, ascending, in 0..count - 1.
    """
    entries = np.bincount(experts, minlength=count)
    blocks = -(-entries // block_size)
    starts = (np.cumsum(blocks) - blocks) * block_size
    within = np.arange(len(experts)) - np.repeat(np.cumsum(entries) - entries, entries)
    return starts[experts] + within, blocks
