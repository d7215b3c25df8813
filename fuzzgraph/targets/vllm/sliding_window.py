"""A second layer with a sliding window, in a KV cache group of its own, as vLLM serves one.

The engine's hybrid KV cache gives each group a block table, and all groups one pool of blocks: a
block is one group's at a time. A window of w tokens, the query's own included, is `swa_window` + 1.
Sources: vLLM v1/kv_cache_interface.py (SlidingWindowSpec), v1/core/single_type_kv_cache_manager.py
(SlidingWindowManager), v1/worker/gpu_model_runner.py (_build_attention_metadata).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.case.kv_groups import SECOND_LAYER
from fuzzgraph.content import content_for
from fuzzgraph.observation import Field
from fuzzgraph.ports import GroupPools, Pools
from fuzzgraph.row_mixing import split_mixed
from fuzzgraph.targets.offline.demands import demand_instance
from fuzzgraph.targets.offline.embeddings import looked_up_qkv
from fuzzgraph.targets.vllm.kv_cache import kv_planes
from fuzzgraph.world import Batch

LAYER = "model.layers.1.self_attn.attn"
FORWARD = "the forward of the sliding-window layer"
_PREFIX = "swa_"
_OF_GROUP = ("slot_mapping", "block_table")
"""What a group's metadata has of its own; the rest is the same in all groups."""


class SlidingLayer:
    """Embeddings and the engine's attention, as the model's first layer has them.

    Args:
        attention: makes the engine's layer of a name and a window.
        on_device: a weight where the loader makes a model's parameters.
    """

    def __init__(
        self,
        config: EngineConfig,
        attention: Callable[[str, int], Any],
        on_device: Callable[[torch.Tensor], torch.Tensor],
    ) -> None:
        _, shape = group_configs(config)
        weights = content_for(shape, 1).weights
        self.config = config
        self.embed, self.pos_embed = on_device(weights["embed"]), on_device(weights["pos_embed"])
        self.attend = attention(LAYER, config.swa_window + 1)

    def forward(self, input_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """[tokens, heads * head_dim]"""
        qkv = looked_up_qkv(self.embed, self.pos_embed, input_ids, positions, self.config, FORWARD)
        out: torch.Tensor = self.attend(*(part.contiguous() for part in qkv))
        demand_instance(out, torch.Tensor, "what attention computed", FORWARD)
        return out


def split_layers(handed_out: torch.Tensor, config: EngineConfig) -> dict[str, torch.Tensor]:
    """Copies of the outputs in what the model handed out: each [tokens, heads, head_dim]."""
    if not config.swa_window:
        return split_mixed(handed_out, config)
    columns = config.num_q_heads * config.v_head_dim
    second = handed_out[:, -columns:].reshape(-1, config.num_q_heads, config.v_head_dim)
    first = handed_out[:, :-columns].contiguous()
    return {**split_mixed(first, config), SECOND_LAYER: second.clone()}


def with_groups(fields: tuple[Field, ...], config: EngineConfig) -> tuple[Field, ...]:
    """The fields, and those that a further group has of its own."""
    further = range(1, len(group_configs(config)))
    return fields + tuple(
        replace(field, name=_PREFIX + field.name, group=group, repeats=field.truth)
        for group in further
        for field in fields
        if field.name in _OF_GROUP
    )


def metadata_of_groups(built: Mapping[int, Any]) -> dict[str, torch.Tensor]:
    """What the kernels of further groups read, as the builder of each made it last."""
    return {
        _PREFIX + name: getattr(metadata, name) for metadata in built.values() for name in _OF_GROUP
    }


def runner_pools(caches: list[torch.Tensor], config: EngineConfig) -> Pools:
    """The runner's caches, one for each layer."""
    first, *others = (
        kv_planes(cache, shape) for cache, shape in zip(caches, group_configs(config), strict=True)
    )
    return Pools(kv_planes=first, more_groups=tuple(GroupPools(kv_planes=each) for each in others))


def blocks_of(batch: Batch, row: int) -> tuple[list[int], ...]:
    """Blocks of a row in each group; the null block where the window has left them behind."""
    return tuple(group.pages.row(row).tolist() for group in batch.groups)
