"""Sizes of the built-in engine that follow from its config; nothing is allocated here."""

from __future__ import annotations

from typing import NamedTuple

import torch

from fuzzgraph.case import EngineConfig, Mode
from fuzzgraph.world import FIRST_PAGE, FIRST_ROW

DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Extent(NamedTuple):
    """A size on both axes."""

    rows: int
    """Request rows."""
    tokens: int
    """Token rows."""


def pages_for(tokens: int, page_size: int) -> int:
    """Pages that hold `tokens` tokens."""
    return -(-tokens // page_size)


def pool_rows(config: EngineConfig) -> int:
    """Request rows of the pools: the reserved and the trap rows come first."""
    return config.req_pool_size + FIRST_ROW


def pool_slots(config: EngineConfig) -> int:
    """KV slots of the pool: the reserved and the trap pages come first."""
    return (config.kv_pool_pages + FIRST_PAGE) * config.page_size


def table_width(config: EngineConfig) -> int:
    """Columns of the request-to-token table: the context and what speculation adds to it."""
    return config.max_context_len + config.draft_tokens + config.spec_steps


def row_tokens(config: EngineConfig, mode: Mode) -> int:
    """Tokens each request row has in a padded batch of `mode`."""
    if mode in ("target_verify", "draft_extend"):
        return config.draft_tokens
    return config.spec_topk if mode == "draft" else 1


def smallest_fitting(sizes: tuple[int, ...], size: int) -> int | None:
    """The smallest captured size that holds `size`; None above the ladder."""
    return next((captured for captured in sizes if captured >= size), None)
