"""The head of a language model behind attention: known weights, and the logits that it gives.

A hidden state is what attention gives for a token. Each logit reads two columns of it, so that what
rounds before the head and in it stays small beside what tells one token's logits from another's.
The number of logits is prime: no engine's blocks or ranks divide it.

Data-parallel ranks may share the head: each has a part of a vocabulary that is padded to whole
blocks, and gives its logits for the tokens of all ranks. What the others' tokens have for hidden
states is said here.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.data_ranks import rank_sizes
from fuzzgraph.row_mixing import LARGEST_VALUE
from fuzzgraph.splitmix import hash_counters, hash_quarters
from fuzzgraph.world import Batch

__all__ = [
    "HIDDEN",
    "LOGITS",
    "LOGITS_OF_RANKS",
    "PADDED_VOCABULARY",
    "VOCABULARY",
    "head_outputs",
    "head_weight",
    "hidden_columns",
    "hidden_of_ranks",
    "logits_coarseness",
    "padded_head_weight",
    "rank_logits",
    "returned_columns",
    "several_layers",
]

LOGITS = "logits"
"""The output: logits of each token, [tokens, VOCABULARY] float32, whatever the model's dtype."""
LOGITS_OF_RANKS = "logits_of_ranks"
"""The output: this rank's part of the logits of each token of all data-parallel ranks, those of a
padded vocabulary included."""
HIDDEN = "returned_hidden"
"""The output: the hidden states that a model hands out beside logits, by token."""
VOCABULARY = 37
PADDED_VOCABULARY = 64
"""Source: sglang vocab_parallel_embedding.py, DEFAULT_VOCAB_PADDING_SIZE."""
_WEIGHTS = (1.0, -1.0, 0.5, -0.5, 0.75)
_OTHERS = 30_000
"""The key of the other ranks' numbers, to which step and rank are added."""
_READ = 2
"""Columns of a hidden state that a logit reads."""


def hidden_columns(config: EngineConfig) -> int:
    """Columns of a hidden state."""
    return config.num_q_heads * config.v_head_dim


def returned_columns(config: EngineConfig) -> int:
    """Columns of what a model hands out of a token's hidden states."""
    return hidden_columns(config) * (2 if config.returned_hidden == "aux" else 1)


@lru_cache(maxsize=16)
def head_weight(columns: int) -> torch.Tensor:
    """float32 [VOCABULARY, columns], exact in half precision."""
    counters = np.arange(VOCABULARY * _READ, dtype=np.uint64)
    places = hash_counters(11_000 + columns, counters) >> np.uint64(20)
    values = hash_counters(11_500, counters) >> np.uint64(20)
    found = torch.zeros(VOCABULARY, columns)
    for logit in range(VOCABULARY):
        for read in range(_READ):
            one = logit * _READ + read
            found[logit, int(places[one]) % columns] += _WEIGHTS[int(values[one]) % len(_WEIGHTS)]
    return found


def padded_head_weight(columns: int) -> torch.Tensor:
    """float32 [PADDED_VOCABULARY, columns] the same, with rows of zeros behind it."""
    rows = PADDED_VOCABULARY - VOCABULARY
    return torch.nn.functional.pad(head_weight(columns), (0, 0, 0, rows))


def hidden_of_ranks(batch: Batch, config: EngineConfig) -> list[torch.Tensor]:
    """float32 [tokens, columns] of each other rank's tokens, of this rank's an empty one: multiples
    of 1/4 in [-2, 2] that differ by step."""
    columns, found = hidden_columns(config), []
    for rank, tokens in enumerate(rank_sizes(batch, config)):
        rows = 0 if rank == config.dp_rank else tokens
        found.append(
            torch.from_numpy(hash_quarters(_OTHERS + 100 * batch.step + rank, rows, columns))
        )
    return found


def several_layers(hidden: torch.Tensor) -> list[torch.Tensor]:
    """What a model hands out of several of its layers, as an EAGLE-3 draft model asks for it: of
    one layer before the last one, which here turns its sign, and of the last one."""
    return [-hidden, hidden]


def head_outputs(
    attended: torch.Tensor, config: EngineConfig, dtype: torch.dtype
) -> dict[str, torch.Tensor]:
    """Logits and returned hidden states in `dtype`, where the config has the latter or not.

    Args:
        attended: [tokens, Hq, Dv] what attention gives, in the same dtype.
    """
    hidden = attended.flatten(1)
    logits = hidden @ head_weight(hidden.shape[1]).to(dtype).T
    if config.final_logit_cap:
        logits = config.final_logit_cap * torch.tanh(logits / config.final_logit_cap)
    aux = config.returned_hidden == "aux"
    return {LOGITS: logits, HIDDEN: torch.cat(several_layers(hidden), -1) if aux else hidden}


def rank_logits(
    attended: torch.Tensor, batch: Batch, config: EngineConfig, dtype: torch.dtype
) -> torch.Tensor:
    """[tokens of all ranks, columns] in `dtype`: `LOGITS_OF_RANKS`."""
    hidden = [rows.to(dtype) for rows in hidden_of_ranks(batch, config)]
    hidden[config.dp_rank] = attended.flatten(1)
    each = PADDED_VOCABULARY // config.dp_size
    mine = padded_head_weight(hidden_columns(config))[config.dp_rank * each :][:each]
    return torch.cat(hidden) @ mine.to(dtype).T


def logits_coarseness(dtype: torch.dtype) -> float:
    """How far the head may take a logit from the truth: each column that it reads is off by a
    rounding of attention, and the sum is rounded. A cap only brings numbers closer."""
    return (_READ + 1) * float(torch.finfo(dtype).eps) * LARGEST_VALUE
