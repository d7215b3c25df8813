"""Launches models of kernels: recorded in a graph like the launch of a kernel, and replayed.

The body of a launch runs on the host and may read any value, as a kernel may on its device. What
the recorder keeps is the body with its arguments, so a replay sees the present content of captured
tensors and the scalars of the capture.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch

from fuzzgraph.errors import AdapterUnavailable
from fuzzgraph.kernel_models.arguments import check_arguments
from fuzzgraph.kernel_models.memory import KernelMemory
from fuzzgraph.kernel_models.reading import reads_only
from fuzzgraph.kernel_models.report import LaunchReport
from fuzzgraph.lanes.report import LaneReport

__all__ = [
    "ModelKernel",
    "Run",
    "belongs_to_the_step",
    "beside_the_step",
    "current_route",
    "launch",
    "routed",
    "run_kernel",
    "side_of",
    "sides_told",
]


@dataclass(frozen=True, slots=True)
class ModelKernel:
    """The device's part of a model."""

    name: str
    """As the engine calls it, e.g. `flash_attn_with_kvcache`."""
    fn: Callable[..., None]
    """Takes a `KernelMemory`, then the arguments by name; writes its results into them."""
    source: str
    """The documentation that it follows, with its version."""
    grid: None = None
    """Kernels of Triton have one."""
    plans: tuple[str, ...] = ()
    """Arguments that hold a plan: how the work is shared out, in a layout that follows from the
    size of the batch. What is computed by a plan tells whether it is right."""


Run = Callable[..., None]
"""Takes the kernel, then its arguments by name."""

_ROUTES: list[Run] = []
_SIDES: list[Callable[[torch.Tensor], str]] = []
_ASIDE: list[str] = []


def launch(kernel: ModelKernel, **arguments: Any) -> None:
    """Run a kernel's model, by way of the guarded memory that is in use, if any.

    Raises:
        AdapterUnavailable: its tensors lie on a device, where a graph cannot hold Python.
        KernelRefused: an argument is of another kind than the kernel takes.
    """
    check_arguments(kernel.name, kernel.fn, arguments)
    _needs_host(kernel, arguments)
    current_route()(kernel, **arguments)


@reads_only
def _needs_host(kernel: ModelKernel, arguments: Mapping[str, Any]) -> None:
    for name, value in arguments.items():
        if isinstance(value, torch.Tensor) and value.is_cuda:
            raise AdapterUnavailable(
                f"{kernel.name} is a model of a kernel and runs on the host; {name} lies on "
                f"{value.device}. Install the engine's compiled kernels, or use --device cpu."
            )


def current_route() -> Run:
    """What runs launches now; without guarded memory, strays and misuses are not kept."""
    return _ROUTES[-1] if _ROUTES else _run_alone


def _run_alone(kernel: ModelKernel, **arguments: Any) -> None:
    memory = KernelMemory(LaunchReport(kernel.name, kernel.source, LaneReport()))
    run_kernel(memory, kernel, **arguments)


def run_kernel(memory: KernelMemory, kernel: ModelKernel, **arguments: Any) -> None:
    """Run the body of a launch; what it did wrong goes to the memory's report."""
    # No gradients, no modes of the harness: the body is no work of the engine's.
    if not torch.is_grad_enabled():  # as while an engine runs, and to ask costs little
        kernel.fn(memory, **arguments)
        return
    with torch.no_grad():
        kernel.fn(memory, **arguments)


@contextmanager
def beside_the_step(why: str) -> Iterator[None]:
    """Inside, launches are none of a step's, and nobody takes down what they are handed.

    Args:
        why: what they are for.
    """
    _ASIDE.append(why)
    try:
        yield
    finally:
        _ASIDE.pop()


def belongs_to_the_step() -> bool:
    """Whether a launch now is one of the step's."""
    return not _ASIDE


@contextmanager
def routed(route: Run) -> Iterator[None]:
    """Inside, every launch goes through `route`."""
    _ROUTES.append(route)
    try:
        yield
    finally:
        _ROUTES.pop()


def side_of(tensor: torch.Tensor) -> str:
    """'host' or 'device', as the engine asked for the memory; '' where nobody knows."""
    return _SIDES[-1](tensor) if _SIDES else ""


@contextmanager
def sides_told(by: Callable[[torch.Tensor], str]) -> Iterator[None]:
    """Inside, `side_of` answers as `by` does."""
    _SIDES.append(by)
    try:
        yield
    finally:
        _SIDES.pop()
