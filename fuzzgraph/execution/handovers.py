"""Puts what was handed over into the words of the batch: where a key lies, as a slot of the KV
pool, and which memory has no meaning.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Literal

import numpy as np
import torch

from fuzzgraph.handover import Attended, Handover, Ints, QueryRow
from fuzzgraph.kernel_models.attention import Row, Softmax
from fuzzgraph.memory import GuardedMemory
from fuzzgraph.memory.launch_record import Launched


def launches(taken: Iterable[Launched], planes: Sequence[torch.Tensor]) -> tuple[Handover, ...]:
    """What was launched, with the meaning that each kernel's model worked out.

    Args:
        planes: the KV pool's, [slots, ...]; keys that lie in none are told by their index.
    """
    found = []
    for each in taken:
        each.handover.attended = tuple(
            _attended(keys, queries, rows, softmax, planes)
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
            if values is None or not values.size or values.flat[0] != values.flat[-1]:
                continue
            if memory.is_unwritten(part.address):
                each.tensors[name] = replace(part, values=None)


def _attended(
    cache: torch.Tensor,
    queries: int,
    rows: Sequence[Row],
    softmax: Softmax,
    planes: Sequence[torch.Tensor],
) -> Attended:
    plane = next((plane for plane in planes if _inside(cache, plane)), None)
    found, start = [], 0
    places = _places(cache, rows, plane)
    for row in rows:
        stop = start + len(row.keys[0])
        first = row.first if row.into is None else row.into
        found.append(QueryRow(first, row.tokens, places[start:stop], row.hidden))
        start = stop
    place: Literal["slot", "index"] = "index" if plane is None else "slot"
    return Attended(tuple(found), queries, place, softmax.scale, softmax.softcap)


def _inside(cache: torch.Tensor, plane: torch.Tensor) -> bool:
    """Whether a cache is the plane under another shape, or a part of it."""
    return plane.data_ptr() <= cache.data_ptr() < plane.data_ptr() + plane.nbytes


def _places(cache: torch.Tensor, rows: Sequence[Row], plane: torch.Tensor | None) -> Ints:
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
    offset = np.full(len(index[0]), cache.data_ptr() - plane.data_ptr(), dtype=np.int64)
    for each, stride in zip(index, cache.stride(), strict=False):
        offset += each * stride * cache.element_size()
    return offset // (plane.stride(0) * plane.element_size())
