"""The pools of one KV cache group, and what one batch means in them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from fuzzgraph.case import EngineConfig, attention_layers, group_configs
from fuzzgraph.case.kv_groups import AttentionLayer
from fuzzgraph.content import Content, attention_contents
from fuzzgraph.execution.pool_memory import (
    PageMap,
    PoolPlane,
    group_name,
    kv_signature,
    page_shape,
)
from fuzzgraph.ports import Pools
from fuzzgraph.reference import new_tokens
from fuzzgraph.reference.draft_layers import layer_batch, layer_content
from fuzzgraph.world import RESERVED_SLOT, Batch, IntArray


@dataclass(frozen=True, slots=True)
class PoolGroup:
    """The planes and the page map of one group; of a layer that is not the group's first, the
    planes alone."""

    config: EngineConfig
    """As the group's layers see it."""
    content: Content
    planes: tuple[PoolPlane, ...]
    """An object of another group where that has the same memory."""
    page_map: PageMap | None
    name: str
    """What its planes are called."""
    number: int = 0
    """Of the group, in the order of `case.group_configs`."""
    layer: int = 0
    """Of a draft model with several."""

    def seen(self, batch: Batch) -> Batch:
        """A step as the group's layers see it."""
        return layer_batch(batch, self.layer).groups[self.number]

    def history(self, batch: Batch) -> IntArray:
        """Indices into `kv_slots` of the tokens before this step whose KV is there.

        Args:
            batch: as the group's layers see it.
        """
        offsets, slots = batch.kv_slots.offsets, batch.kv_slots.values
        lens = np.diff(offsets)
        # Cached tokens come first in each row: an entry is past up to its row's end there.
        ends = np.repeat(offsets[:-1] + batch.cached_lens, lens)
        return np.flatnonzero((np.arange(len(slots)) < ends) & (slots != RESERVED_SLOT))

    def written(self, batch: Batch) -> tuple[torch.Tensor, ...]:
        """What each plane must hold at `batch.slot_mapping` after the step."""
        return self.content.kv_planes(*new_tokens(batch, self.config))


def pool_groups(pools: Pools, config: EngineConfig) -> tuple[PoolGroup, ...]:
    """The groups of a session's pools, in the order of `case.group_configs`; then what further
    layers of the groups have, or in a draft model with several layers the groups of each."""
    known: list[PoolPlane] = []
    found = []
    for layer, groups in enumerate(pools.layers):
        for number, (group, shape) in enumerate(zip(groups, group_configs(config), strict=True)):
            name = group_name("kv_planes", number, layer)
            planes = _planes(name, group.kv_planes, shape, known, pools.null_block)
            known += planes
            table = group.req_to_token
            page_map = None if table is None else PageMap(group_name("req_to_token", number), table)
            content = layer_content(config, layer, number)
            found.append(PoolGroup(shape, content, planes, page_map, name, number, layer))
    for number, (layer_of, planes_of) in enumerate(further_layers(pools, config)):
        shape, name = group_configs(config)[layer_of.group], f"more_layers[{number}]"
        planes = _planes(name, planes_of, shape, known, pools.null_block)
        known += planes
        content = attention_contents(config)[len(group_configs(config)) + number]
        found.append(PoolGroup(shape, content, planes, None, name, layer_of.group))
    return tuple(found)


def further_layers(
    pools: Pools, config: EngineConfig
) -> Iterator[tuple[AttentionLayer, tuple[torch.Tensor, ...]]]:
    """(layer, its planes) of each that is not the first of its group."""
    yield from zip(
        attention_layers(config)[len(group_configs(config)) :], pools.more_layers, strict=True
    )


def encoder_planes(pools: Pools, config: EngineConfig) -> tuple[PoolPlane, ...]:
    """Those of a layer that has the keys and values of encoders alone."""
    return _planes("encoder_planes", pools.encoder_planes, config, (), pools.null_block)


def _planes(
    name: str,
    tensors: Sequence[torch.Tensor],
    config: EngineConfig,
    known: Sequence[PoolPlane],
    null_block: bool,
) -> tuple[PoolPlane, ...]:
    planes = []
    for index, tensor in enumerate(tensors):
        shared = next((plane for plane in known if plane.is_view_of(tensor)), None)
        planes.append(shared or PoolPlane(
            f"{name}[{index}]",
            tensor,
            kv_signature(index, len(tensors)),
            reserved_rows=config.page_size,
            written_rows=config.page_size if null_block else 1,
            page_shape=page_shape(tensor, index, config),
        ))  # fmt: skip
    return tuple(planes)
