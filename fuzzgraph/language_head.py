"""The head of a language model behind attention: known weights, and the logits that it gives.

A hidden state is what attention gives for a token. Each logit reads two columns of it, so that what
rounds before the head and in it stays small beside what tells one token's logits from another's.
The number of logits is prime: no engine's blocks or ranks divide it.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.row_mixing import LARGEST_VALUE
from fuzzgraph.splitmix import hash_counters

__all__ = [
    "HIDDEN",
    "LOGITS",
    "VOCABULARY",
    "head_outputs",
    "head_weight",
    "hidden_columns",
    "logits_coarseness",
    "returned_columns",
    "several_layers",
]

LOGITS = "logits"
"""The output: logits of each token, [tokens, VOCABULARY] float32, whatever the model's dtype."""
HIDDEN = "returned_hidden"
"""The output: the hidden states that a model hands out beside logits, by token."""
VOCABULARY = 37
_WEIGHTS = (1.0, -1.0, 0.5, -0.5, 0.75)
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


def logits_coarseness(dtype: torch.dtype) -> float:
    """How far the head may take a logit from the truth: each column that it reads is off by a
    rounding of attention, and the sum is rounded. A cap only brings numbers closer."""
    return (_READ + 1) * float(torch.finfo(dtype).eps) * LARGEST_VALUE
