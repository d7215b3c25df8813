"""Tells whether anything still holds a tensor in a piece of guarded memory.

Memory in which no tensor of an engine lies any more is free: an allocator hands it out again. The
guard never does, and what the recorder captures keeps aliases of it, so that nothing would show.
"""

from __future__ import annotations

import gc
import sys
import weakref
from collections import Counter
from collections.abc import Collection, Iterable
from contextlib import suppress
from itertools import compress

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
    containers: Collection[object] = (),
) -> dict[int, weakref.ReferenceType[torch.Tensor]]:
    """By the `id` of each of these regions in which something of the process holds a tensor, one of
    these tensors.

    It lists all objects, which takes a tenth of a second: ask for what is suspected already.

    Args:
        ours: `id` of the harness's own tensors in them, which do not count.
        containers: lists and dicts of the harness: what they alone hold does not count.
    """
    found = _Inside(set(map(id, regions)), layout, ours)
    # What is set aside from collections is not listed.
    gc.unfreeze()
    try:
        found.take(_tensors_of_process())
    finally:
        gc.freeze()
    return found.held(containers)


class _Inside:
    """The tensors of the process in some regions."""

    def __init__(self, wanted: Collection[int], layout: Layout, ours: Collection[int]) -> None:
        self._wanted = wanted
        self._layout = layout
        self._ours = ours
        self._keys: list[int] = []
        self._tensors: list[torch.Tensor] = []
        # A view keeps its base alive, without a reference that Python sees.
        self._views = Counter[int]()

    def take(self, tensors: Iterable[torch.Tensor]) -> None:
        for one in tensors:
            # Tensors without memory of their own raise.
            with suppress(RuntimeError, NotImplementedError):
                region = self._layout.region_of(one)
                if region is None or id(region) not in self._wanted:
                    continue
                if not one.is_inference():
                    self._views[id(one._base)] += 1
                # The harness's views of whole blocks begin with a red zone.
                payload = address_of(one) >= self._layout.arena.address + region.offset
                if payload and id(one) not in self._ours:
                    self._keys.append(id(region))
                    self._tensors.append(one)

    def held(
        self, containers: Collection[object]
    ) -> dict[int, weakref.ReferenceType[torch.Tensor]]:
        """By region, one of the tensors that something else than `containers` holds.

        References are counted: an object of a C++ library may hold a tensor and not tell the
        collector.
        """
        kept = Counter[int]()
        wanted = set(map(id, self._tensors))
        for each in containers:
            kept.update(filter(wanted.__contains__, map(id, gc.get_referents(each))))
        held = {}
        references = _references(self._tensors)
        for key, tensor, count in zip(self._keys, self._tensors, references, strict=True):
            views = self._views[id(tensor)]
            of_python = count > _REFERENCES[bool(views)] + kept[id(tensor)]
            # All of Python counts once there.
            of_cpp = tensor._use_count() > 1 + views  # type: ignore[attr-defined]
            if of_python or of_cpp:
                held[key] = weakref.ref(tensor)
        return held


def _tensors_of_process() -> list[torch.Tensor]:
    kinds = _with_subclasses(torch.Tensor)
    # By `type`: `isinstance` asks an object for its class, and a lazy module would import. No loop
    # in Python over all objects: there are half a million, few of them tensors.
    objects = gc.get_objects()
    return list(compress(objects, map(kinds.__contains__, map(id, map(type, objects)))))


def _with_subclasses(kind: type) -> set[int]:
    """`id` of a class and of all below it."""
    return {id(kind)}.union(*map(_with_subclasses, type.__subclasses__(kind)))


def _references(tensors: list[torch.Tensor]) -> list[int]:
    return [sys.getrefcount(tensor) for tensor in tensors]


def _references_of_one_list() -> tuple[int, int]:
    """What `_references` gives for tensors that its list alone holds: one, and one with a view.

    Measured, since Pythons count their own use differently, and torch's a view's.
    """
    with torch.inference_mode(False):
        tensors = [torch.empty(1), torch.empty(1)]
        view = tensors[1][:]
        lone, viewed = _references(tensors)
        del view
    return lone, viewed


_REFERENCES = _references_of_one_list()
