"""The KV cache groups of a config: layers that share page maps, each with a page size of its own.

The first group is that of the layers which see all keys, or all that `sliding_window` lets them
see. A second one has the layers behind `swa_window`. Sources: vLLM KVCacheConfig.kv_cache_groups
(FullAttentionSpec, SlidingWindowSpec), sglang SWAKVPool.
"""

from __future__ import annotations

from functools import lru_cache

import msgspec

from fuzzgraph.case.model import DIMENSIONS, EngineConfig

SECOND_LAYER = "swa_attention"
"""Output of the second layer; that of the first is `attention`."""
# What only the first layer, or what stands behind it, has.
_FIRST_ALONE = (
    "swa_window", "swa_page_size", "max_encoder_len", "recurrent_state", "row_mixing",
    "attn_tp_size", "attn_tp_rank", "index_topk", "index_group", "index_block", "kv_compression",
    "candidate_blocks", "index_layer", "attention_chunk_size", "state_track_interval",
    "prefix_branches", "state_pool_size", "drafted_prompts", "dp_size", "dp_rank",
    "max_loras", "num_experts", "experts_per_token", "expert_scoring",
    "expert_activation", "ep_size", "ep_rank", "expert_exchange",
    "virtual_pages", "later_stage", "two_batch_overlap", "drafted_blocks", "drafted_window",
    "backend_beside", "verifies_as_prefill", "draft_window_size", "draft_sink_size",
    "draft_reach", "draft_adapter", "state_ring_len", "state_flush_interval",
)  # fmt: skip


@lru_cache(maxsize=256)
def group_configs(config: EngineConfig) -> tuple[EngineConfig, ...]:
    """The config as the layers of each group see it; the first is the config itself.

    That of a further group has the group's window and page size, and no other group. What it says
    of weights and of the first group's window is not meant: layers have weights of their own.

    >>> [each.page_size for each in group_configs(EngineConfig(swa_window=4, swa_page_size=2))]
    [1, 2]
    """
    if not config.swa_window:
        return (config,)
    plain = {name: DIMENSIONS[name].default for name in _FIRST_ALONE}
    second = msgspec.structs.replace(
        config,
        **plain,
        sliding_window=config.swa_window,
        page_size=config.swa_page_size or config.page_size,
    )
    return config, second


def attention_outputs(config: EngineConfig) -> tuple[str, ...]:
    """The output of each attention layer, in the order of the groups.

    >>> attention_outputs(EngineConfig(swa_window=4))
    ('attention', 'swa_attention')
    """
    return ("attention", *(SECOND_LAYER for _ in group_configs(config)[1:]))
