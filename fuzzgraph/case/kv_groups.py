"""The KV cache groups of a config: layers that share page maps, each with a page size of its own.

The first group is that of the layers which see all keys, or all that `sliding_window` lets them
see. A second one has the layers behind `swa_window`. Sources: vLLM KVCacheConfig.kv_cache_groups
(FullAttentionSpec, SlidingWindowSpec), sglang SWAKVPool.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple

import msgspec

from fuzzgraph.case.engine_config import DIMENSIONS, EngineConfig, LayerType

SECOND_LAYER = "swa_attention"
"""Output of the first layer behind `swa_window`; that of the first of all is `attention`."""
_OUTPUTS = ("attention", SECOND_LAYER)
_ONE_OF_EACH: tuple[LayerType, ...] = ("full_attention", "sliding_attention")
_GROUPS: Mapping[LayerType, int] = {kind: group for group, kind in enumerate(_ONE_OF_EACH)}
# What only the first layer, or what stands behind it, has.
_FIRST_ALONE = (
    "swa_window", "swa_page_size", "layer_types", "max_encoder_len", "recurrent_state",
    "row_mixing", "attn_tp_size", "attn_tp_rank", "index_topk", "index_group", "index_block",
    "pooled_block", "dense_len", "kv_compression",
    "candidate_blocks", "index_layer", "attention_chunk_size", "state_track_interval",
    "prefix_branches", "state_pool_size", "drafted_prompts", "dp_size", "dp_rank",
    "max_loras", "lora_eviction", "pinned_loras", "adapted_embeddings",
    "experts_shared_outer_loras", "lora_use_virtual_experts",
    "num_experts", "experts_per_token", "expert_scoring", "expert_groups",
    "expert_activation",
    "expert_quantisation", "shared_experts", "expert_copies",
    "ep_size", "ep_rank", "expert_exchange",
    "virtual_pages", "later_stage", "two_batch_overlap", "drafted_blocks", "drafted_window",
    "backend_beside", "verifies_as_prefill", "draft_window_size", "draft_sink_size",
    "draft_reach", "draft_adapter", "state_ring_len", "state_flush_interval",
    "safe_gate", "linear_head_dim", "even_ranks", "all_reduce_kib", "verify_budget",
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


def output_of(first: str, number: int) -> str:
    """The output of a layer, by that of the first one of its kind.

    >>> output_of("attention", 0), output_of("attention", 1)
    ('attention', 'attention_2')
    """
    return f"{first}_{number + 1}" if number else first


def recurrent_layers(config: EngineConfig) -> int:
    """How many layers with recurrent state the model has."""
    return config.layer_types.count("linear_attention") or int(config.recurrent_state)


class AttentionLayer(NamedTuple):
    """A layer that attends, of a model that may have several of a kind."""

    output: str
    group: int
    """Number of its KV cache group."""
    number: int
    """Its number among the layers of the group."""
    place: int
    """Its number among all layers of the model."""


@lru_cache(maxsize=256)
def attention_layers(config: EngineConfig) -> tuple[AttentionLayer, ...]:
    """The layers that attend: the first of each group, in the order of the groups, then the others
    in the model's order. Weights and keys of a layer are those of its number here.

    >>> kinds = ("sliding_attention", "full_attention", "full_attention")
    >>> for layer in attention_layers(EngineConfig(swa_window=4, layer_types=kinds)):
    ...     print(*layer)
    attention 0 0 1
    swa_attention 1 0 0
    attention_2 0 1 2
    """
    kinds = config.layer_types or _ONE_OF_EACH[: len(group_configs(config))]
    found: list[AttentionLayer] = []
    for place, kind in enumerate(kinds):
        if kind in _GROUPS:
            group = _GROUPS[kind]
            number = sum(layer.group == group for layer in found)
            name = output_of(_OUTPUTS[group], number)
            found.append(AttentionLayer(name, group, number, place))
    firsts = (layer for layer in found if not layer.number)
    others = (layer for layer in found if layer.number)
    return (*sorted(firsts, key=lambda layer: layer.group), *others)


def attention_outputs(config: EngineConfig) -> tuple[str, ...]:
    """The output of each attention layer, in the order of `attention_layers`.

    >>> attention_outputs(EngineConfig(swa_window=4))
    ('attention', 'swa_attention')
    """
    return tuple(layer.output for layer in attention_layers(config))
