"""Gives a guarded tensor new memory before `resize_`, or `out=` of another size, makes it grow.

All guarded tensors share one storage, so a tensor that grew in place would run into its neighbours.
Torch moves a tensor that outgrows its storage; here it moves to a region of its own.
"""

from __future__ import annotations

from typing import Any

import torch

from fuzzgraph.memory.arena import storage_key
from fuzzgraph.memory.operator_facts import Facts
from fuzzgraph.memory.placement import Layout, extent, memory_of
from fuzzgraph.memory.regions import Segment

# Result sizes kept, so that a long run stays flat.
_REMEMBERED = 4096


class Resizing:
    """Moves guarded tensors out of the way before an operation makes them grow."""

    def __init__(self, layout: Layout) -> None:
        self._layout = layout
        self._storage = layout.arena.storage_key
        self._sizes: dict[Any, tuple[torch.Size, ...]] = {}

    def make_room(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: Any, segment: Segment
    ) -> tuple[torch.Tensor, ...]:
        """Give each target that is about to outgrow its memory a new region.

        Returns:
            The targets that were moved.
        """
        targets = _targets(facts, args, kwargs)
        if not any(storage_key(target) == self._storage for target in targets):
            return ()
        moved: list[torch.Tensor] = []
        sizes = self._sizes_after(func, facts, args, kwargs)
        if sizes is None:
            return ()
        for target, size in zip(targets, sizes, strict=True):
            # Another shape of no more elements fits where the tensor lies.
            if target.shape != size and size.numel() > extent(target):
                self._move(func, target, size, segment)
                moved.append(target)
        return tuple(moved)

    def _sizes_after(
        self, func: Any, facts: Facts, args: tuple[Any, ...], kwargs: Any
    ) -> tuple[torch.Size, ...] | None:
        """Sizes that the operation gives its targets; None for an operation that cannot be run."""
        key = (func, _shapes(args), _shapes(kwargs.items()))
        sizes = self._sizes.get(key)
        if sizes is not None:
            return sizes
        if facts.is_resize:
            like = args[1]
            sizes = (torch.Size(like.shape if isinstance(like, torch.Tensor) else like),)
        else:
            # Only the operation knows: run it on empty results of our own, and see what they
            # become. The answer is kept, because it depends on shapes and plain values alone.
            dry = {name: torch.empty_like(kwargs[name]).resize_(0) for name in facts.outs}
            try:
                func(*args, **{**kwargs, **dry})
            except Exception:
                # The real call, which comes next, raises the same. There it is the engine's error;
                # raised from here it would count as ours.
                return None
            sizes = tuple(out.shape for out in dry.values())
        if len(self._sizes) >= _REMEMBERED:
            self._sizes.clear()
        self._sizes[key] = sizes
        return sizes

    def _move(self, func: Any, target: torch.Tensor, size: torch.Size, segment: Segment) -> None:
        old = memory_of(target)
        like = torch.empty(size, dtype=target.dtype, device=target.device)
        slot = self._layout.slot(func, like, segment, born_empty=True)
        new = slot.base.as_strided(size, like.stride(), slot.element)
        # The engine keeps its tensor object: `set_` gives that object the new memory. Then, as
        # torch does in a resize, the elements it had come along as they lay, whatever the strides.
        target.set_(new.untyped_storage(), new.storage_offset(), size, new.stride())
        target.view(-1)[: len(old)].copy_(old)


def _targets(facts: Facts, args: tuple[Any, ...], kwargs: Any) -> list[torch.Tensor]:
    """The tensors that an operation writes and may resize; lists of results are not resized."""
    targets = [args[0]] if facts.is_resize else [kwargs[name] for name in facts.outs]
    return targets if all(isinstance(each, torch.Tensor) for each in targets) else []


def _shapes(values: Any) -> tuple[Any, ...]:
    """What decides the size of a result: shapes of tensors, plain values as they are."""
    key: list[Any] = []
    for value in values:
        if isinstance(value, torch.Tensor):
            key.append((value.shape, value.dtype))
        elif isinstance(value, (list, tuple)):
            key.append(_shapes(value))
        else:
            key.append(value)
    return tuple(key)
