"""The engine's pool of a model whose attention selects groups of keys, and how it is described.

The pool is the engine's own, `QSATokenToKVPool`: beside keys and values it has a compressed key for
each group, and for each request a ring with the keys and positions of the group that is not whole.
"""

from __future__ import annotations

from typing import Any

from fuzzgraph.block_index import GROUP, HEADS, WIDTH
from fuzzgraph.case import EngineConfig
from fuzzgraph.targets.offline.package import call_with_known
from fuzzgraph.targets.sglang.attention_model import first_layer
from fuzzgraph.targets.sglang.release import engine_module

__all__ = ["POOL", "SELECTED_GROUPS", "block_index_pool", "describe_indexer"]

POOL = "sglang.srt.mem_cache.qsa_kv_pool"
SELECTED_GROUPS = 512
"""Groups that an indexer selects where a case does not say: `indexer_budget` / ratio, which the
engine wants to be this or 2048 (sglang qsa/config.py)."""


def describe_indexer(described: Any, config: EngineConfig) -> None:
    """Give the engine's description of a model what `parse_qsa_profile` reads of an indexer."""
    described.indexer_n_heads = HEADS
    described.indexer_kv_heads = 1
    described.indexer_head_dim = WIDTH
    described.indexer_compress_ratio = GROUP
    described.indexer_budget = (config.index_topk or SELECTED_GROUPS) * GROUP
    described.rms_norm_eps = 1e-6


def block_index_pool(config: EngineConfig, slots: int, requests: Any, **common: Any) -> Any:
    """The engine's pool of one layer, without the states of the recurrent layers beside it.

    Args:
        slots: of the KV pool.
        requests: the request pool, whose rows each have a ring.
        common: what every pool of the engine takes.
    """
    return call_with_known(
        engine_module(POOL).QSATokenToKVPool,
        size=slots,
        head_num=config.num_kv_heads,
        head_dim=config.head_dim,
        full_attention_layer_ids=[first_layer(config)],
        mamba_pool=None,
        qsa_index_kv_heads=1,
        qsa_index_head_dim=WIDTH,
        qsa_compress_ratio=GROUP,
        qsa_token_topk=(config.index_topk or SELECTED_GROUPS) * GROUP,
        num_request_slots=len(requests.req_to_token),
        **common,
    )
