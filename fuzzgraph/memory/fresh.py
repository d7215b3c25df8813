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

from fuzzgraph.memory.mode_stack import past_modes
from fuzzgraph.memory.operator_facts import EMPTY
from fuzzgraph.memory.placement import Layout
from fuzzgraph.memory.worlds import Worlds
from fuzzgraph.relays import relay

# Torch's own, of which older releases lack some.
_FUNCTIONS = {name: getattr(torch, name) for name in EMPTY if hasattr(torch, name)}
_METHODS = {name: getattr(torch.Tensor, name) for name in EMPTY if hasattr(torch.Tensor, name)}


class FreshPoison:
    """Fills what torch allocates without content with the poison of the present world.

    Args:
        layout: memory of another device than its arena's is left alone, and so is what lies in the
            arena: that has its poison, and the graph that is being captured would hold ours.
        worlds: tells the present one.
    """

    def __init__(self, layout: Layout, worlds: Worlds) -> None:
        self._layout = layout
        self._worlds = worlds

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
        layout = self._layout
        # Past the modes: a late stream would run this copy as the engine's work.
        with past_modes(), torch._C.DisableTorchFunction():
            plain = made.__class__ is torch.Tensor and made.layout is torch.strided
            if plain and made.device == layout.arena.device and not layout.holds(made):
                row = layout.poison_row(made.dtype, self._worlds.fresh_world)
                # A copy, because torch cannot fill each dtype that it can copy.
                made.copy_(row.view(made.dtype)[0])
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
