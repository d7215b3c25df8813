"""The KV pool of MiniMax's sparse attention: the engine's own, with the world's slots.

A model has a layer that sees all keys and one that selects blocks of them. Both keep keys and
values in one pool; the second keeps an index key of each token in another, and no index values
(`sparse_disable_index_value`).
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.case import EngineConfig
from fuzzgraph.reference.dense_layer import INDEX_WIDTH
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["DENSE_LAYER", "SPARSE_LAYER", "sparse_description", "sparse_kv_pool"]

DENSE_LAYER, SPARSE_LAYER = 0, 1
_POOLS = "sglang.srt.mem_cache.memory_pool"


def sparse_description(config: EngineConfig) -> dict[str, Any]:
    """`sparse_attention_config` of the model's description; heads are those of one rank."""
    return {
        "sparse_attention_freq": [0, 1],
        "sparse_disable_index_value": [0, 1],
        "sparse_index_dim": INDEX_WIDTH,
        "sparse_num_index_heads": config.num_kv_heads,
        "sparse_block_size": config.index_block,
        "sparse_topk_blocks": config.index_topk,
        "sparse_init_block": 0,
        "sparse_local_block": 1,
        "sparse_score_type": "max",
    }


def sparse_kv_pool(config: EngineConfig, slots: int, **common: Any) -> Any:
    """The engine's pool of both layers.

    Args:
        slots: of the KV pool.
        common: page size, dtype and device, as every pool of the engine takes them.
    """
    return call_with_known(
        engine_module(_POOLS).MiniMaxSparseKVPool,
        size=slots,
        head_num=config.num_kv_heads,
        head_dim=config.head_dim,
        idx_head_dim=INDEX_WIDTH,
        dense_layer_ids=[DENSE_LAYER],
        sparse_layer_ids=[SPARSE_LAYER],
        disable_value_sparse_layer_ids=[SPARSE_LAYER],
        index_dtype=_index_dtype(config, common["dtype"]),
        start_layer=DENSE_LAYER,
        end_layer=SPARSE_LAYER + 1,
        enable_memory_saver=False,
        **common,
    )


def _index_dtype(config: EngineConfig, stored: torch.dtype) -> torch.dtype:
    """Of index keys beside KV in `stored`, as the engine's own rule has it for the device.

    Up to 0.5.20 the pool's maker has it (kv_cache_configurator.py `_build_minimax_sparse_kv_pool`):
    the model's dtype, but for FP8 queries on TensorRT-LLM's kernels.
    """
    model: torch.dtype = getattr(torch, config.dtype)
    rule = getattr(engine_module(_POOLS), "get_minimax_sparse_index_dtype", None)
    if rule is None:
        return model
    found: torch.dtype = rule(fp8_attn_gemm=False, kv_cache_dtype=stored, model_dtype=model)
    return found
