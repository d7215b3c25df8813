"""Columns of a token's row before its experts, and of what these give for it.

A row holds columns of its own, one column for its token id, and columns of attention.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.splitmix import hash_counters
from fuzzgraph.world import VOCAB

ATTENDED = 16
"""Columns of attention in a token's row; those beyond are left out, missing ones are zero."""
OWN = 16
"""Columns of a token's own."""
EXPERT_WIDTH = OWN + VOCAB + ATTENDED
"""Columns of a row, and of what the layer gives."""


def quarters(key: int, *shape: int) -> torch.Tensor:
    """float32 multiples of 1/4 in [-1/2, 1/2], so that products over a row are exact in float16."""
    counters = np.arange(int(np.prod(shape)), dtype=np.uint64)
    bits = hash_counters(key, counters) >> np.uint64(40)
    numbers = ((bits % np.uint64(5)).astype(np.float32) - 2.0) / 4.0
    return torch.from_numpy(numbers.reshape(shape))
