"""Takes down the launch of a kernel's model: its arguments as they are, and their meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.handover import Handover, as_it_is, part_of
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["Launched", "taken_down"]


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch, and its meaning in the terms of its own tensors."""

    handover: Handover
    memory: KernelMemory
    """Its `attended` is filled while the model runs."""


def taken_down(
    memory: KernelMemory,
    number: int,
    arguments: Mapping[str, Any],
    side_of: Callable[[torch.Tensor], str],
) -> Launched:
    """A launch that is about to run.

    Args:
        number: of the launch in its run.
        side_of: host or device, where that is known.
    """
    taken = Handover(memory.kernel, "kernel", number, called_at=memory.called_at)
    with as_it_is():
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                taken.tensors[name] = part_of(value, side_of(value))
            elif isinstance(value, (bool, int, float, str)):
                taken.scalars[name] = value
    return Launched(taken, memory)
