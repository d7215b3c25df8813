"""`--attention-backend flashmla`: FlashMLA's metadata.

Real: `FlashMLABackend` and the Triton kernel that builds its page table. Stood in for: FlashMLA's
compiled planner, whose plan of tiles stays untested.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.targets.sglang.backends.attention_backend import (
    ATTENTION,
    AttentionBackend,
    attributes,
    latent_table,
)

_MODULE = f"{ATTENTION}.flashmla_backend"


def _no_tiles(cache_seqlens: torch.Tensor, *_: Any, **__: Any) -> tuple[torch.Tensor, torch.Tensor]:
    """In place of `get_mla_metadata`: a plan of the right shapes, in which nothing is planned."""
    rows = cache_seqlens.shape[0]
    return torch.zeros(1, 8, dtype=torch.int32), torch.zeros(rows + 1, dtype=torch.int32)


_FLASHMLA = AttentionBackend(
    name="flashmla",
    places=((_MODULE, "FlashMLABackend"),),
    attention="mla",
    page_sizes=(64,),  # PAGE_SIZE in the backend's module
    fields=("page_table",),
    max_context_len=256,
    held=latent_table,
    read=attributes(page_table="block_kv_indices"),
    stubs=((_MODULE, "get_mla_metadata", _no_tiles),),
)

target = _FLASHMLA.target
