"""Poisons what a step allocates without content while no graph captures it.

Such memory comes from torch's own allocator, outside of the arena, and holds what was there before:
a result that was never written would agree with itself in one run and differ in the next.

Torch's functions are replaced, because a dispatch mode costs time at each of a step's operations.
So memory is left as it is where code took a function of torch before (`from torch import empty`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from fuzzgraph.memory.arena import Arena, storage_key
from fuzzgraph.memory.poison import poison_row
from fuzzgraph.relays import relay

# Torch's own functions and methods.
_FUNCTIONS = {
    name: getattr(torch, name)
    for name in ("empty", "empty_like", "empty_strided", "empty_permuted")
    if hasattr(torch, name)  # older releases lack the last
}
_METHODS = {name: getattr(torch.Tensor, name) for name in ("new_empty", "new_empty_strided")}


class FreshPoison:
    """Lets fresh memory of one device hold the poison of the present world.

    Args:
        arena: memory of another device is left alone, and so is what lies in the arena: that has
            its poison, and the graph that is being captured would hold ours.
        world: tells the present world.
    """

    def __init__(self, arena: Arena, world: Callable[[], int]) -> None:
        self._device = arena.device
        self._guarded = arena.storage_key
        self._world = world

    @contextmanager
    def installed(self) -> Iterator[None]:
        """Inside, what torch allocates without content is poisoned; may be nested."""
        _install_methods()
        _active.append(self)
        # Only while a step runs: `torch.jit.script` knows torch's own functions alone.
        for name, function in _POISONING.items():
            setattr(torch, name, function)
        try:
            yield
        finally:
            _active.pop()
            if not _active:
                for name, function in _FUNCTIONS.items():
                    setattr(torch, name, function)

    def poison(self, made: Any) -> Any:
        """What an operation made, now with poison."""
        ours = made.__class__ is torch.Tensor and made.device == self._device
        if ours and storage_key(made) != self._guarded:
            # A copy, because torch cannot fill each dtype that it can copy.
            made.copy_(_value(made.dtype, self._world(), self._device))
        return made


_active: list[FreshPoison] = []


def _poisoning(torchs: Callable[..., Any]) -> Callable[..., Any]:
    """One of torch's functions, whose result is poisoned while a step runs."""

    @relay
    def poisoning(*args: Any, **kwargs: Any) -> Any:
        made = torchs(*args, **kwargs)
        return _active[-1].poison(made) if _active else made

    poisoning.__name__ = torchs.__name__
    return poisoning


_POISONING = {name: _poisoning(function) for name, function in _FUNCTIONS.items()}


@cache
def _install_methods() -> None:
    """Replace the methods, once and for good: each change of a class slows down its lookups."""
    for name, method in _METHODS.items():
        setattr(torch.Tensor, name, _poisoning(method))


@cache
def _value(dtype: torch.dtype, world: int, device: torch.device) -> torch.Tensor:
    """The poison of a dtype, 0-dim."""
    return poison_row(dtype, world).view(dtype)[0].to(device)
