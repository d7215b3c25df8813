"""A second layer with a sliding window, in a KV cache group of its own, as vLLM serves one.

The engine's hybrid KV cache gives each group a block table, and all groups one pool of blocks: a
block is one group's at a time. A window of w tokens, the query's own included, is `swa_window` + 1.
Sources: vLLM v1/kv_cache_interface.py (SlidingWindowSpec), v1/core/single_type_kv_cache_manager.py
(SlidingWindowManager), v1/worker/gpu_model_runner.py (_build_attention_metadata).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch

from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.observation import Field
from fuzzgraph.ports import GroupPools, Pools
from fuzzgraph.targets.vllm.kv_cache import kv_planes
from fuzzgraph.world import Batch

LAYER = "model.layers.1.self_attn.attn"
_PREFIX = "swa_"
_OF_GROUP = ("slot_mapping", "block_table")
"""What a group's metadata has of its own; the rest is the same in all groups."""


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
