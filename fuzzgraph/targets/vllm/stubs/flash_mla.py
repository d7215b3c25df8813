"""FlashMLA's dense decode, as its own Python in vLLM's wheel calls it, by models of its kernels.

The operator plans where it gets no plan, and hands the plan out for the layers that follow.
"""

from __future__ import annotations

import torch

from fuzzgraph.kernel_models import flash_mla
from fuzzgraph.targets.offline.kernel_arguments import strict

_plan = strict(flash_mla.get_mla_metadata)
_decode = strict(flash_mla.flash_mla_with_kvcache)


def put_flash_mla() -> None:
    """Have the interface call the models; once per process, before a session opens."""
    # A function in the operator's place is recorded as a launch is.
    vars(torch.ops._flashmla_C)["dense_decode_fwd"] = dense_decode_fwd


def dense_decode_fwd(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    head_dim_v: int,
    cache_seqlens: torch.Tensor,
    block_table: torch.Tensor,
    softmax_scale: float,
    causal: bool,
    tile_scheduler_metadata: torch.Tensor | None,
    num_splits: torch.Tensor | None,
    out: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """(attention, lse, and the plan that it followed).

    Source: FlashMLA 02fe0d0, csrc/api/dense_decode.h.
    """
    tiles, splits = tile_scheduler_metadata, num_splits
    if tiles is None or splits is None:
        each = q.shape[1] * q.shape[2] // k_cache.shape[2]
        tiles, splits = _plan(cache_seqlens, each, k_cache.shape[2])
    attended, lse = _decode(
        q,
        k_cache,
        block_table,
        cache_seqlens,
        head_dim_v,
        tiles,
        splits,
        softmax_scale=softmax_scale,
        causal=causal,
    )
    if out is not None:
        attended = out.copy_(attended)
    return attended, lse, tiles, splits
