"""Puts what was handed over into the words of the batch: where a key lies, as a slot of the KV
pool, and which memory has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from fuzzgraph.case import EngineConfig, group_configs
from fuzzgraph.execution.pool_group import further_layers
from fuzzgraph.execution.pool_memory import page_shape
from fuzzgraph.handover import Attended, Handover, Ints, QueryRow
from fuzzgraph.kernel_models.attention import Row, Softmax
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.launch_record import Launched
from fuzzgraph.ports import Pools


def launches(taken: Iterable[Launched], pools: Pools, config: EngineConfig) -> tuple[Handover, ...]:
    """What was launched, with the meaning that each kernel's model worked out.

    Args:
        pools: keys that lie in no KV plane of these are told by their index.
    """
    slots = [
        _Slots(plane, page_shape(plane, at, shape))
        for layer in pools.layers
        for group, shape in zip(layer, group_configs(config), strict=True)
        for at, plane in enumerate(group.kv_planes)
    ]
    slots += [
        _Slots(plane, page_shape(plane, at, group_configs(config)[layer.group]))
        for layer, planes in further_layers(pools, config)
        for at, plane in enumerate(planes)
    ]
    slots += [
        _Slots(plane, page_shape(plane, at, config))
        for at, plane in enumerate(pools.encoder_planes)
    ]
    found = []
    for each in taken:
        each.handover.attended = tuple(
            _attended(keys, queries, rows, softmax, slots)
            for keys, queries, rows, softmax in each.memory.attended
        )
        found.append(each.handover)
    return tuple(found)


def drop_unwritten(taken: Iterable[Handover], memory: GuardedMemory) -> None:
    """Drop the content of memory that nobody wrote: it has no meaning that could be wrong.

    That it is read shows elsewhere, since it differs between worlds.
    """
    for each in taken:
        for name, part in each.tensors.items():
            values = part.values
            # Such memory holds one value throughout, which is quickly seen.
            if values is None or not values.size or values.item(0) != values.item(-1):
                continue
            if memory.is_unwritten(part.address):
                each.tensors[name] = replace(part, values=None)


def _attended(
    cache: torch.Tensor,
    queries: int,
    rows: Sequence[Row],
    softmax: Softmax,
    planes: Sequence[_Slots],
) -> Attended:
    plane = next((plane for plane in planes if plane.holds(cache)), None)
    found, start = [], 0
    places = _places(cache, rows, plane)
    for row in rows:
        stop = start + len(row.keys[0])
        first = row.first if row.into is None else row.into
        found.append(QueryRow(first, row.tokens, places[start:stop], row.hidden))
        start = stop
    place: Literal["slot", "index"] = "index" if plane is None else "slot"
    return Attended(tuple(found), queries, place, softmax.scale, softmax.softcap)


class _Slots:
    """Where the slots of a KV plane lie.

    Args:
        page: slots of a page, where the plane is [pages, *page, ...]; () where it is [slots, ...].
    """

    def __init__(self, plane: torch.Tensor, page: tuple[int, ...]) -> None:
        self.start = plane.data_ptr()
        self._page = page
        sizes = zip(plane.shape, plane.stride(), strict=True)
        self._bytes = sum((size - 1) * stride for size, stride in sizes if size) + 1
        self._bytes *= plane.element_size()
        self._steps = [stride * plane.element_size() for stride in plane.stride()]

    def holds(self, cache: torch.Tensor) -> bool:
        """Whether a cache is the plane under another shape, or a part of it."""
        return self.start <= cache.data_ptr() < self.start + self._bytes

    def at(self, offset: Ints) -> Ints:
        """Slots whose first byte lies so many bytes behind the plane's start."""
        slots: Ints = offset // self._steps[0]
        for size, step, outer in zip(self._page, self._steps[1:], self._steps, strict=False):
            slots = slots * size + offset % outer // step
        return slots


def _places(cache: torch.Tensor, rows: Sequence[Row], plane: _Slots | None) -> Ints:
    """Where the keys of all rows lie, one row after the other."""
    if not rows:
        return np.empty(0, dtype=np.int64)
    index = [np.concatenate(parts) for parts in zip(*(row.keys for row in rows), strict=True)]
    if plane is None:
        found: Ints = index[0]
        for each, size in zip(index[1:], cache.shape[1:], strict=False):
            found = found * size + each
        return found
    # By address, since a cache has as many shapes as kernels: a slot is where its first byte lies.
    offset = np.full(len(index[0]), cache.data_ptr() - plane.start, dtype=np.int64)
    for each, stride in zip(index, cache.stride(), strict=False):
        offset += each * stride * cache.element_size()
    return plane.at(offset)
