"""What steps of a model whose indexer selects groups of keys (`index_group`) leave.

That is the compressed key of each group that they complete, and of the tokens behind the last one
the indexer's own keys, of which a later step makes the next group's. The harness writes a step's
past before each run, so what a step leaves for later ones is looked at when it ends. Of a verify
the drafts that stay count alone; those of a draft model all do while it goes on. Beside logits of
prompts a server hands out each token's hidden states, for a draft model.
"""

from __future__ import annotations

import numpy as np
import torch

from fuzzgraph.block_index import GROUP, HEADS, WIDTH, Floats, normed_keys, raw_rows
from fuzzgraph.case import EngineConfig
from fuzzgraph.reference.geometry import queries_of
from fuzzgraph.world import Batch

__all__ = ["GROUP_KEYS", "GROUP_STRAYS", "HIDDEN_STREAMS", "group_outputs", "hidden_streams"]

GROUP_KEYS = "group_keys"
"""[new tokens, WIDTH] for each its group's key, or its own where that group is not whole; zeros for
a draft that does not stay. A draft's tokens are those of all of its steps, by row; they leave
nothing where they share what was selected before (`shared_selection`), since no indexer runs."""
GROUP_STRAYS = "group_strays"
"""[raw_bs] in each row how many other places have changed, or have a token's wrong position. Those
of older tokens whose group is not yet whole are such places: behind a verify by the tokens that
stay, behind a draft by those before it."""
HIDDEN_STREAMS = "hidden_streams"
"""What attention computed, once more, as it goes to a draft model."""


def hidden_streams(
    attended: torch.Tensor, batch: Batch, config: EngineConfig
) -> dict[str, torch.Tensor]:
    """The attended rows by the name of what goes to a draft model; {} where nothing does."""
    prompts = config.index_group > 1 and batch.mode == "prefill"
    return {HIDDEN_STREAMS: attended} if prompts else {}


def group_outputs(batch: Batch, config: EngineConfig) -> dict[str, torch.Tensor]:
    """What a step leaves; no arithmetic rounds it."""
    if config.index_group == 1:
        return {}
    rows = [_keys_of(batch, row, config) for row in range(batch.raw_bs)]
    return {
        GROUP_KEYS: torch.from_numpy(np.concatenate([np.zeros((0, WIDTH)), *rows])),
        GROUP_STRAYS: torch.zeros(batch.raw_bs, dtype=torch.int64),
    }


def _keys_of(batch: Batch, row: int, config: EngineConfig) -> Floats:
    """[new tokens, WIDTH] of one request."""
    tokens, cached = batch.kv_tokens.row(row), int(batch.cached_lens[row])
    stays = int(batch.stayed_lens[row])
    if batch.mode == "draft":
        steps = config.spec_steps
        tokens = np.append(tokens, queries_of(batch, config).tokens[row * steps :][:steps])
        stays += 0 if config.shared_selection else steps
    new = np.arange(cached, len(tokens))
    found = raw_rows(tokens[new], new % GROUP)[:, HEADS * WIDTH :]
    found[new >= stays] = 0
    whole = new < stays // GROUP * GROUP
    firsts = new[whole] // GROUP * GROUP
    found[whole] = normed_keys(tokens[firsts[:, None] + np.arange(GROUP)], firsts)
    return found
