"""What tokens leave for a compressor of keys, and what of it must be there behind a step.

A token leaves a value and a score for the sum that its group's key is; groups of 4 take the group
before into their sum, so that a token leaves another value and score for the next one. Later steps
need the states of the group that is not yet whole, and with groups of 4 those of the group before
it. DeepSeek V4.1 has groups of 2, and layers that keep a key of each token, for which nothing is
left. Of a verify the tokens that stay count alone. Source: sglang 0.5.12 to 0.5.23,
csrc/deepseek_v4/c4_v2.cuh, c128_v2.cuh and c2.cuh.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.content import Content, content_for
from fuzzgraph.world import Batch, IntArray

__all__ = [
    "CANDIDATE_BLOCK",
    "INDEX_STATES",
    "STATES",
    "STRAYS",
    "compression_ratio",
    "compressor_outputs",
    "compressor_shape",
    "index_rows",
    "kept_positions",
    "kept_rows",
    "key_rows",
    "left_states",
    "promised_of_compressor",
    "without_places",
]

STATES = "compressor_states"
"""The output: of each row the states that later steps need, in the order of their tokens."""
INDEX_STATES = "indexer_states"
"""The same of an indexer's keys."""
STRAYS = "compressor_strays"
"""The output: how many entries of the compressor's memory changed that no token of the batch has,
the same for all rows."""
CANDIDATE_BLOCK = 8
"""Compressed keys of a block of candidates (sglang dsv4/candidate_table.py)."""
_OVERLAPS = 4


def compression_ratio(config: EngineConfig) -> int:
    """Tokens that leave one compressed key; 0 where there are none."""
    kind = config.kv_compression
    return int(kind[1:]) if kind in ("c1", "c2", "c4", "c128") else 0


def promised_of_compressor(config: EngineConfig) -> tuple[str, ...]:
    """The outputs of a layer that compresses its keys as the config says."""
    ratio = compression_ratio(config)
    states = (STATES,) if ratio > 1 else ()
    index = (INDEX_STATES,) if ratio == _OVERLAPS else ()
    return (*states, *index, STRAYS) if ratio else ()


def left_states(keys: torch.Tensor, ratio: int) -> torch.Tensor:
    """[tokens, columns] what tokens with these keys leave: value and score of their group's sum;
    with groups of 4 the value for the next sum before the value, and so for the scores."""
    scores = torch.zeros_like(keys)
    if ratio == _OVERLAPS:
        return torch.cat((keys + 1, keys, scores, scores), 1)  # another value for the next
    return torch.cat((keys, scores), 1)


def kept_positions(length: int, ratio: int) -> IntArray:
    """Positions of a row with so many tokens whose states later steps need."""
    whole = length - length % ratio
    before = ratio if ratio == _OVERLAPS else 0
    return np.arange(max(0, whole - before), length)


def key_rows(content: Content, tokens: IntArray) -> torch.Tensor:
    """[n, D] the keys of tokens before they have a place, in the model's dtype."""
    config = content.config
    query = config.num_q_heads * config.head_dim
    embed = content.weights["embed"][:, query : query + config.head_dim]
    return embed[torch.from_numpy(tokens)]


def index_rows(content: Content, tokens: IntArray) -> torch.Tensor:
    """[n, columns] the same of an indexer's keys."""
    return torch.from_numpy(without_places(content.index_keys[0][tokens])).to(content.dtype)


def without_places(by_token: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Rows of an indexer that follow from tokens; columns for what places say are zero."""
    return np.hstack((by_token, np.zeros_like(by_token)))


def compressor_shape(name: str, config: EngineConfig) -> tuple[int, ...]:
    """Of a row of an output."""
    if name == STRAYS:
        return ()
    ratio = compression_ratio(config)
    width = config.head_dim if name == STATES else 2 * content_for(config).index_keys[0].shape[1]
    overlaps = ratio == _OVERLAPS
    return (ratio * (2 if overlaps else 1), width * (4 if overlaps else 2))


def kept_rows(batch: Batch, ratio: int) -> Iterator[tuple[int, IntArray]]:
    """(row, positions whose states later steps need) of each row."""
    for row, length in enumerate(batch.stayed_lens.tolist()):
        yield row, kept_positions(length, ratio)


def compressor_outputs(batch: Batch, config: EngineConfig) -> dict[str, torch.Tensor]:
    """The truth of these outputs behind a step; {} for a layer that does not compress."""
    ratio, content = compression_ratio(config), content_for(config)
    found: dict[str, torch.Tensor] = {}
    for name in promised_of_compressor(config):
        shape = (batch.raw_bs, *compressor_shape(name, config))
        found[name] = torch.zeros(shape, dtype=torch.int64 if name == STRAYS else torch.float64)
        if name == STRAYS:
            continue
        rows_of = key_rows if name == STATES else index_rows
        for row, positions in kept_rows(batch, ratio):
            tokens = batch.kv_tokens.row(row)[positions]
            found[name][row, : len(positions)] = left_states(rows_of(content, tokens), ratio)
    return found
