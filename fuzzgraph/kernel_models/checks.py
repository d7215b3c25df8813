"""What models ask of a call: the checks of a kernel's host code, and rules on its arguments.

`Call` raises what the real host code would raise. Rules on content, which host code cannot see, are
`KernelMemory.misused`; those that many kernels share are here as well.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from fuzzgraph.errors import KernelNotModelled, KernelRefused
from fuzzgraph.kernel_models.memory import Ints, KernelMemory
from fuzzgraph.kernel_models.reading import reads_only

__all__ = ["Call", "check_longest", "check_offsets"]


@dataclass(frozen=True, slots=True)
class Call:
    """One call of a kernel, whose host code may refuse it."""

    kernel: str
    source: str
    """The documentation or host code that has the rules, with its version."""

    def needs(self, holds: bool, rule: str, got: object) -> None:
        """Refuse the call unless the rule holds.

        Raises:
            KernelRefused: it does not; carries the rule, the value and the source.
        """
        if not holds:
            raise KernelRefused(f"{self.kernel}: {rule}; got {got} ({self.source})")

    @reads_only
    def needs_dtype(self, name: str, tensor: torch.Tensor | None, *dtypes: torch.dtype) -> None:
        """Refuse a tensor of another dtype; None passes."""
        if tensor is None:
            return
        # Arguments that a model takes by `**` are annotated as anything.
        self.needs(isinstance(tensor, torch.Tensor), f"{name} must be a tensor", tensor)
        dtype = tensor.dtype
        if dtype not in dtypes:
            wanted = " or ".join(str(each).removeprefix("torch.") for each in dtypes)
            self.needs(False, f"{name} must be {wanted}", str(dtype).removeprefix("torch."))

    @reads_only
    def needs_shape(self, name: str, tensor: torch.Tensor | None, *sizes: int | None) -> None:
        """Refuse a tensor of another shape; None passes.

        Args:
            sizes: one for each dimension; None takes any size.
        """
        if tensor is None:
            return
        self.needs(isinstance(tensor, torch.Tensor), f"{name} must be a tensor", tensor)
        fits = tensor.dim() == len(sizes) and all(
            size is None or size == got for size, got in zip(sizes, tensor.shape, strict=True)
        )
        if not fits:
            wanted = ", ".join("any" if size is None else str(size) for size in sizes)
            self.needs(False, f"{name} must be [{wanted}]", list(tensor.shape))

    @reads_only
    def needs_contiguous(self, name: str, tensor: torch.Tensor) -> None:
        """Refuse a tensor that is not contiguous."""
        if not tensor.is_contiguous():
            self.needs(False, f"{name} must be contiguous", list(tensor.stride()))

    @reads_only
    def needs_contiguous_last(self, name: str, tensor: torch.Tensor | None) -> None:
        """Refuse a tensor whose last dimension is not contiguous; None passes."""
        if tensor is None:
            return
        if not tensor.dim():
            self.needs(False, f"{name} must have a dimension", [])
        if tensor.shape[-1] > 1 and tensor.stride(-1) != 1:
            rule = f"{name} must be contiguous in its last dimension"
            self.needs(False, rule, f"strides {list(tensor.stride())}")

    def leaves_out(self, given: Mapping[str, Any], defaults: Mapping[str, Any]) -> None:
        """Refuse arguments that the model does not follow, unless they have their defaults.

        Args:
            given: arguments beyond those that the model follows.
            defaults: of the kernel, for each name that it knows.

        Raises:
            KernelNotModelled: names the first argument; it says nothing about the engine.
        """
        for name, value in given.items():
            if value is None or (name in defaults and _same(value, defaults[name])):
                continue
            raise KernelNotModelled(
                f"the model of {self.kernel} does not follow {name}={_shown(value)}. The target"
                " says in which configs an engine passes it; leave those out, or extend the model."
            )


def _same(value: Any, default: Any) -> bool:
    return not isinstance(value, torch.Tensor) and bool(value == default)


def _shown(value: Any) -> str:
    if isinstance(value, torch.Tensor):
        return f"a tensor {str(value.dtype).removeprefix('torch.')}{list(value.shape)}"
    if isinstance(value, (bool, int, float, str, tuple, torch.dtype)):
        return repr(value)
    return f"a {type(value).__name__}"  # its repr may go on for pages, and differ in every case


def check_longest(memory: KernelMemory, name: str, longest: int, row: int, tokens: int) -> None:
    """Record a row with more tokens than the longest that its caller announced by `name`."""
    if tokens > longest:
        rule = f"{name} must be at least the tokens of every row"
        memory.misused(name, rule, f"{longest} for row {row} with {tokens} tokens")


def check_offsets(memory: KernelMemory, name: str, offsets: Ints, end: int | None = None) -> None:
    """Record offsets that do not start at 0, decrease, or end beyond what they cut.

    Args:
        end: entries of what they cut; None where the kernel does not say.
    """
    if not len(offsets):
        return
    if offsets[0] != 0:
        memory.misused(name, f"{name} must start at 0", f"{offsets[0]}")
    falls = np.flatnonzero(np.diff(offsets) < 0)
    if len(falls):
        at = int(falls[0])
        got = f"{offsets[at]} before {offsets[at + 1]} at row {at}"
        memory.misused(name, f"{name} must not decrease", got)
    if end is not None and offsets.max(initial=0) > end:
        rule = f"{name} must not end beyond the {end} entries that it cuts"
        memory.misused(name, rule, f"{offsets.max()}")


def first_of(values: Iterable[Any], default: Any = None) -> Any:
    """The first value that is not None."""
    return next((value for value in values if value is not None), default)
