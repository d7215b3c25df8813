"""Tells whether anything still holds a tensor in a piece of guarded memory.

Memory in which no tensor of an engine lies any more is free: an allocator hands it out again. The
guard never does, and what the recorder captures keeps aliases of it, so that nothing would show.
"""

from __future__ import annotations

import gc
import weakref
from collections.abc import Collection, Iterable, Iterator
from contextlib import suppress
from types import FrameType

import torch

from fuzzgraph.memory.arena import address_of
from fuzzgraph.memory.placement import Layout
from fuzzgraph.memory.regions import Region


def may_be_free(region: Region) -> bool:
    """Whether the tensor that an engine got for a buffer is gone; views of it may live on."""
    return region.given is None or region.given() is None


def held(
    regions: Iterable[Region],
    layout: Layout,
    *,
    ours: Collection[int],
    containers: Collection[int] = (),
) -> dict[int, weakref.ReferenceType[torch.Tensor]]:
    """By the `id` of each of these regions in which something of the process holds a tensor, one of
    these tensors.

    It walks all objects, which takes a tenth of a second: ask for what is suspected already.

    Args:
        ours: `id` of the harness's own tensors in them, which do not count.
        containers: `id` of lists and dicts of the harness: what they alone hold does not count.
    """
    found = {id(region): list[torch.Tensor]() for region in regions}
    # What is set aside from collections is neither listed nor searched.
    gc.unfreeze()
    try:
        for region, tensor in _inside(found.keys(), layout, ours):
            found[id(region)].append(tensor)
        known = {*containers, *map(id, found.values())}
        kept = {key: _held_one(tensors, known) for key, tensors in found.items()}
        return {key: tensor for key, tensor in kept.items() if tensor is not None}
    finally:
        gc.freeze()


def _inside(
    wanted: Collection[int], layout: Layout, ours: Collection[int]
) -> Iterator[tuple[Region, torch.Tensor]]:
    for one in gc.get_objects():
        # By `type`: `isinstance` asks an object for its class, and a lazy module would import.
        if not issubclass(type(one), torch.Tensor) or id(one) in ours:
            continue
        # Tensors without memory of their own raise.
        with suppress(RuntimeError, NotImplementedError):
            region = layout.region_of(one)
            # The harness's views of whole blocks begin with a red zone.
            payload = region is not None and address_of(one) >= layout.arena.address + region.offset
            if region is not None and payload and id(region) in wanted:
                yield region, one


def _held_one(
    tensors: list[torch.Tensor], known: Collection[int]
) -> weakref.ReferenceType[torch.Tensor] | None:
    # A view keeps its base alive, without a reference that Python sees.
    bases = {id(tensor._base) for tensor in tensors if not tensor.is_inference()}
    # No generator: it would hold the tensor itself.
    for tensor in tensors:
        holders = [one for one in gc.get_referrers(tensor) if not _is_frame_here(one)]
        # Without a reference that Python sees it is C++ that holds it.
        if any(id(one) not in known for one in holders) or not (holders or id(tensor) in bases):
            return weakref.ref(tensor)
    return None


def _is_frame_here(holder: object) -> bool:
    return isinstance(holder, FrameType) and holder.f_globals is globals()
