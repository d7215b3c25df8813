"""The KV pool of MiniCPM's sparse attention: the engine's own, with slots for pooled keys too.

The engine keeps pooled keys in slots of the same pool, which it takes out of the allocator when the
backend opens (`MiniCPMCompressedCache`), as many as it thinks that the rest can need. Stood in for
is the allocator, which hands out slots behind those of the world.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.pooled_blocks import FIRST_BLOCKS, NEWEST_BLOCKS, levels
from fuzzgraph.targets.offline.stub import Stub
from fuzzgraph.targets.sglang.release import engine_module
from fuzzgraph.world import FIRST_PAGE

__all__ = ["describe_pooling", "pooled_allocator", "slots_with_pooled", "world_part"]


def describe_pooling(model: Any, config: EngineConfig) -> None:
    """Give the engine's model config the description of a model with this attention."""
    described = engine_module("sglang.srt.configs.minicpm").MiniCPMHybridConfig(
        architectures=["MiniCPMForCausalLM"],
        hidden_size=model.hf_config.hidden_size,
        num_hidden_layers=model.num_hidden_layers,
        num_attention_heads=model.hf_config.num_attention_heads,
        num_key_value_heads=model.hf_config.num_key_value_heads,
        head_dim=config.head_dim,
        mixer_types=["minicpm4"],
        sparse_config=_sparse_config(config),
    )
    described.attn_logit_softcapping = None
    model.hf_config = model.hf_text_config = described


def _sparse_config(config: EngineConfig) -> dict[str, int]:
    """As a checkpoint says it; of a window's blocks that of the query is one more."""
    fine, _ = levels(config)
    window = NEWEST_BLOCKS - 1
    return {
        "kernel_size": fine.size,
        "kernel_stride": fine.stride,
        "init_blocks": FIRST_BLOCKS,
        "block_size": config.pooled_block,
        "window_size": window * config.pooled_block,
        "topk": config.index_topk - window,
        "dense_len": config.dense_len,
    }


def slots_with_pooled(config: EngineConfig, slots: int) -> int:
    """Slots of a pool that has this many left once the engine has taken those of pooled keys.

    Source: sglang 0.5.19 to 0.5.23, minicpm/cache.py, MiniCPMCompressedCache.reset_allocator.
    """
    if not config.pooled_block:
        return slots
    parts = 4 * levels(config)[0].stride + 5
    total = slots
    while total - -(-5 * total // parts) < slots:
        total += 1
    return total


def pooled_allocator(config: EngineConfig, kv: Any, device: torch.device) -> Any:
    """What the engine asks for slots: of those that are free it gets the last ones."""

    def last(count: int) -> torch.Tensor:
        return torch.arange(kv.size - count + 1, kv.size + 1, device=device.type)

    return Stub(
        page_size=config.page_size,
        get_kvcache=lambda: kv,
        available_size=lambda: kv.size,
        alloc=last,
    )


def world_part(config: EngineConfig, plane: torch.Tensor) -> torch.Tensor:
    """The slots of a plane that the world knows: no pooled keys lie there."""
    return plane[: (config.kv_pool_pages + FIRST_PAGE) * config.page_size]
