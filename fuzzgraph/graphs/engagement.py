"""Proof that a replay was a replay: no Python of the engine ran, and outputs were rewritten."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic, TypeVar

import torch

from fuzzgraph.memory.guard import GuardedMemory

__all__ = ["WatchedForward", "tensors_of", "unwritten_outputs"]

Outputs = TypeVar("Outputs")


class WatchedForward(Generic[Outputs]):
    """Calls the captured function and counts entries made while a replay runs."""

    def __init__(self, forward: Callable[[], Outputs]) -> None:
        self._forward = forward
        self.replaying = False
        self.calls_in_replay = 0

    def __call__(self) -> Outputs:
        self.calls_in_replay += self.replaying
        return self._forward()


def tensors_of(value: Any, path: str = "output") -> list[tuple[str, torch.Tensor]]:
    """Path and tensor of everything a captured function returned."""
    if isinstance(value, torch.Tensor):
        return [(path, value)]
    if isinstance(value, dict):
        items = [(f"{path}[{key!r}]", item) for key, item in value.items()]
    elif isinstance(value, (list, tuple)):
        items = [(f"{path}[{index}]", item) for index, item in enumerate(value)]
    else:
        items = [(f"{path}.{key}", item) for key, item in getattr(value, "__dict__", {}).items()]
    return [found for name, item in items for found in tensors_of(item, name)]


def unwritten_outputs(memory: GuardedMemory, outputs: Any) -> tuple[str, ...]:
    """Float outputs in the graph pool whose every byte is still poison.

    Integers are left out: their poison is a small number that a real result may well be.
    """
    return tuple(
        path
        for path, tensor in tensors_of(outputs)
        if tensor.numel()
        and tensor.is_floating_point()
        and (region := memory.region_of(tensor)) is not None
        and region.segment == "graph"
        and memory.is_poison(tensor)
    )
