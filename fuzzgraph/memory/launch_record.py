"""Takes down the launch of a kernel's model: its arguments as they are, and their meaning."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from fuzzgraph.handover import Handover, as_it_is, part_of, still_holds
from fuzzgraph.kernel_models.launch import ModelKernel
from fuzzgraph.kernel_models.memory import KernelMemory

__all__ = ["Launched", "taken_down", "without_results"]


@dataclass(frozen=True, slots=True)
class Launched:
    """One launch, and its meaning in the terms of its own tensors."""

    handover: Handover
    memory: KernelMemory
    """Its `attended` is filled while the model runs."""


def taken_down(
    kernel: ModelKernel,
    number: int,
    called_at: str,
    arguments: Mapping[str, Any],
    side_of: Callable[[torch.Tensor], str],
) -> Handover:
    """A launch that is about to run.

    Args:
        number: of the launch in its run.
        called_at: the engine's line.
        side_of: host or device, where that is known.
    """
    taken = Handover(kernel.name, "kernel", number, called_at=called_at, plans=kernel.plans)
    with as_it_is():
        for name, value in arguments.items():
            if isinstance(value, torch.Tensor):
                # Its results are told apart by this content as soon as it has run.
                taken.tensors[name] = part_of(value, side_of(value), at_once=True)
            elif isinstance(value, (bool, int, float, str)):
                taken.scalars[name] = value
    return taken


def without_results(taken: Handover, arguments: Mapping[str, Any]) -> None:
    """Drop the content of what the launch wrote, now that it ran: it was not handed over."""
    with as_it_is():
        for name, part in taken.tensors.items():
            if part.values is not None and not still_holds(part, arguments[name]):
                taken.tensors[name] = replace(part, values=None)
