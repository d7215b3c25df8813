"""What kernels of LoRA read of a batch: segments of tokens, slots of adapters and their ranks."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.fields import ADAPTER_POOLS
from fuzzgraph.observation import Field, PaddingRule
from fuzzgraph.targets.offline import fields as common
from fuzzgraph.targets.sglang.release import is_before

_ROUTED = "sglang lora_manager.py prepare_lora_batch: each row's slot, and the rank of each slot"
SLOTS = "sglang mem_pool.py prepare_lora_batch: an adapter takes a free slot, or the oldest's"
BY_SLOT = "which slot an adapter lies in follows from those loaded before; outputs tell a wrong one"
_LEAVES = "sglang --lora-eviction-policy; mem_pool.py prepare_lora_batch: pinned adapters stay"
ROOM_FOR_ALL = (0, 5, 14)
"""From this release on csgmv's graphs go through all segments that a batch may have."""
HELD = (
    common.value("lora_weight_indices", unjudged=BY_SLOT, source=SLOTS),
    common.value("lora_ranks", unjudged=BY_SLOT, source=SLOTS),
    common.value("lora_seg_indptr", unjudged=BY_SLOT, source=SLOTS),
    common.value("lora_permutation", unjudged=BY_SLOT, source=SLOTS),
)
"""Numbers that kernels read, by slot."""


def adapter_fields(config: EngineConfig, padded: PaddingRule) -> tuple[Field, ...]:
    """Ranks of tokens' adapters, the adapters in the pool, and what is read by slot.

    Args:
        padded: what kernels find of padded rows.
    """
    ranks = "lora_ranks_of_all", "rank_adapter_ranks"
    beside = (common.value(ranks[0], repeats=ranks[1], source=_ROUTED),)
    return (
        *(beside if config.dp_size > 1 else ()),
        Field(
            "lora_ranks_of_tokens", "tokens", "nothing", padded, source=_ROUTED,
            repeats="adapter_ranks", in_modes=(("idle", common.FREE),),
        ),
        replace(common.value("lora_pool", repeats=ADAPTER_POOLS, source=_LEAVES), past=_LEAVES),
        *(replace(field, past=BY_SLOT) for field in HELD),
    )  # fmt: skip


def segment_tensors(info: Any) -> dict[str, torch.Tensor]:
    """Tensors that kernels of segments read.

    Args:
        info: the engine's `LoRABatchInfo`.
    """
    found = {
        "lora_weight_indices": info.weight_indices,
        "lora_ranks": info.lora_ranks,
        "lora_scalings": info.scalings,
        "lora_seg_indptr": info.seg_indptr,
        "lora_seg_lens": info.seg_lens,
        "lora_permutation": info.permutation,
    }
    return {name: tensor for name, tensor in found.items() if tensor is not None}


def ranks_of_tokens(info: Any, tokens: int) -> torch.Tensor:
    """int64 [tokens] rank of the adapter that kernels apply to each; 0 if they apply none.

    Args:
        info: the engine's `LoRABatchInfo`.
        tokens: how many, padded ones included.
    """
    found = torch.zeros(tokens, dtype=torch.int64)
    ranks, ends = info.lora_ranks.tolist(), info.seg_indptr.tolist()
    slots = info.weight_indices.tolist()
    permutation = None if info.permutation is None else info.permutation.cpu().long()
    segments = len(slots)  # without a permutation one for each row, padded ones included
    if permutation is not None and (not info.use_cuda_graph or is_before(ROOM_FOR_ALL)):
        segments = min(info.num_segments, segments)
    for segment in range(segments):
        members = torch.arange(ends[segment], max(ends[segment : segment + 2]))
        if permutation is not None:
            members = permutation[members]
        found[members[members < tokens]] = ranks[slots[segment]]
    return found
