"""What a model with a layer that selects blocks (`index_block`) has beside that layer's attention.

That is a layer that sees all keys, whose queries, keys and values are its own, in the slots that
the other's have; and the index key of each new token, which later steps need. The harness writes a
step's past before each run, so what a step leaves for later ones is looked at when it ends.
"""

from __future__ import annotations

import msgspec
import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import INDEX_HALF, content_for
from fuzzgraph.reference.attention import attention, model_for
from fuzzgraph.world import Batch

__all__ = [
    "DENSE_CONTENT",
    "DENSE_OUTPUT",
    "INDEX_KEYS",
    "INDEX_WIDTH",
    "LAYER_STRAYS",
    "dense_outputs",
    "kept_outputs",
]

DENSE_OUTPUT = "dense_attention"
INDEX_KEYS = "index_keys"
"""[num_tokens, INDEX_WIDTH] of a step's new tokens, in their slots."""
LAYER_STRAYS = "layer_strays"
"""[raw_bs] in each row how many other slots have changed: index keys, and keys and values of the
layer that sees all."""
INDEX_WIDTH = 2 * INDEX_HALF
DENSE_CONTENT = 1
"""Its `layer` of `content_for`."""


def dense_outputs(
    batch: Batch, config: EngineConfig, dtype: torch.dtype
) -> tuple[dict[str, torch.Tensor], float]:
    """({output: [T, Hq, Dv]} where the model has such a layer, the largest |V| that entered)."""
    if not config.index_block:
        return {}, 0.0
    of_all = msgspec.structs.replace(config, index_topk=0, index_block=0)
    out, bound = attention(batch, of_all, model_for(of_all, dtype, DENSE_CONTENT))
    return {DENSE_OUTPUT: out}, bound


def kept_outputs(batch: Batch, config: EngineConfig) -> dict[str, torch.Tensor]:
    """What such a step leaves; no arithmetic rounds it."""
    if not config.index_block:
        return {}
    by_token, by_place = content_for(config).index_keys
    keys = np.hstack((by_token[batch.input_ids], by_place[batch.positions]))
    return {
        INDEX_KEYS: torch.from_numpy(keys),
        LAYER_STRAYS: torch.zeros(batch.raw_bs, dtype=torch.int64),
    }
