"""The form an output must have: its rows, its columns and its dtype, whatever it holds.

Rows follow from the sizes that an observation declares, all else from the case alone. What the live
rows hold is `expected`'s job; what padded rows hold is nobody's business.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.content import DTYPES, STATE_WIDTH
from fuzzgraph.observation import Observation
from fuzzgraph.reference.shard import padded_tokens, shard
from fuzzgraph.world import Batch

__all__ = ["OutputSpec", "output_spec", "rounding_dtype"]

# Engines differ in how wide they hold token ids; none of these loses one.
_TOKEN_IDS = (torch.int64, torch.int32)


@dataclass(frozen=True, slots=True)
class OutputSpec:
    """What an output must look like."""

    rows: int
    columns: tuple[int, ...]
    """Shape of one row."""
    dtypes: tuple[torch.dtype, ...]
    """Any of these."""


def rounding_dtype(name: str, config: EngineConfig) -> torch.dtype:
    """The floating dtype that the model computes an output in; decides its tolerance."""
    return torch.float32 if name == "state" else DTYPES[config.dtype]


def output_spec(
    name: str, seen: Observation, batch: Batch, config: EngineConfig
) -> OutputSpec | None:
    """The form of output `name` in one run; None for a name without a reference."""
    heads = (config.num_q_heads, config.v_head_dim)
    dtypes = (rounding_dtype(name, config),)
    if name == "attention":
        return OutputSpec(_token_rows(seen, batch, config), heads, dtypes)
    if name == "draft_tokens":
        return OutputSpec(_token_rows(seen, batch, config), (), _TOKEN_IDS)
    if name == "state":
        return OutputSpec(seen.padded_bs, (STATE_WIDTH,), dtypes)
    if name == "moe":
        return OutputSpec(_share(seen, batch, config), heads, dtypes)
    return None


def _token_rows(seen: Observation, batch: Batch, config: EngineConfig) -> int:
    """Tokens that the engine shows; a draft shows each of its steps."""
    tokens = seen.padded_tokens if seen.shown_tokens is None else seen.shown_tokens
    return tokens * (config.spec_steps if _mode(batch, config) == "draft" else 1)


def _mode(batch: Batch, config: EngineConfig) -> Mode:
    """An idle step runs on the graphs of the first mode."""
    return config.modes[0] if batch.mode == "idle" else batch.mode


def _share(seen: Observation, batch: Batch, config: EngineConfig) -> int:
    """Tokens of this rank: the padded axis is shared out, also where a run has less than it."""
    shared = max(seen.padded_tokens, padded_tokens(batch, config) if batch.raw_bs else 0)
    first, end = shard(shared, config)
    return max(0, min(end, seen.padded_tokens) - first)
