"""A launch that a test draws, and what is drawn from."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import triton.language as tl
from triton.runtime import JITFunction

from fuzzgraph.reference.triton_ready import ready_triton

ready_triton()
COMPILED = isinstance(tl.sum, JITFunction)
"""Whether kernels are compiled here, and no test of the lanes says anything."""

Random = np.random.Generator
Draw = Callable[[Random], "Launch"]

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
# The stock interpreter multiplies and adds the bits of a bfloat16 as an integer.
COMPUTED_BY_STOCK = (torch.float32, torch.float16)


@dataclass(slots=True)
class Launch:
    """Arguments of one kernel launch; `run` may be called on copies of them."""

    kernel: Any
    grid: Any
    args: tuple[Any, ...]
    constants: dict[str, Any]

    def copy(self) -> Launch:
        """The same launch on tensors of its own, strides, offsets and overlaps kept."""
        return self._with(torch.clone)

    def _with(self, copied: Callable[[torch.Tensor], torch.Tensor]) -> Launch:
        storages: dict[int, torch.Tensor] = {}

        def own(value: Any) -> Any:
            if isinstance(value, tuple):
                return tuple(map(own, value))
            if not isinstance(value, torch.Tensor):
                return value
            storage = value.untyped_storage()
            flat = torch.empty(0, dtype=torch.uint8).set_(storage)
            clone = storages.setdefault(storage.data_ptr(), copied(flat))
            return torch.empty(0, dtype=value.dtype, device=clone.device).set_(
                clone.untyped_storage(), value.storage_offset(), value.shape, value.stride()
            )

        return Launch(self.kernel, self.grid, own(self.args), self.constants)

    def on(self, device: str) -> Launch:
        """The same launch on tensors of a device, laid out alike."""
        return self._with(lambda flat: flat.to(device, copy=True))

    def run(self) -> None:
        self.kernel[self.grid](*self.args, **self.constants)

    def memory(self) -> list[bytes]:
        """Every byte of every storage that was passed."""
        return [flat.view(torch.uint8).numpy().tobytes() for flat in self.storages()]

    def storages(self) -> list[torch.Tensor]:
        """Each storage that was passed, flat, in the dtype in which it was passed first."""
        found: dict[int, torch.Tensor] = {}

        def look(value: Any) -> None:
            if isinstance(value, tuple):
                for each in value:
                    look(each)
            elif isinstance(value, torch.Tensor):
                storage = value.untyped_storage()
                flat = torch.empty(0, dtype=value.dtype, device=value.device).set_(storage)
                found.setdefault(storage.data_ptr(), flat)

        look(self.args)
        return list(found.values())


def pick(random: Random, *choices: Any) -> Any:
    return choices[int(random.integers(len(choices)))]


def number(random: Random, low: int, high: int) -> int:
    """A number in [low, high], both included."""
    return int(random.integers(low, high + 1))


def floats(random: Random, *shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.from_numpy(random.standard_normal(shape).astype(np.float32)).to(dtype)


def integers(
    random: Random, low: int, high: int, *shape: int, dtype: torch.dtype = torch.int32
) -> torch.Tensor:
    return torch.from_numpy(random.integers(low, high + 1, shape)).to(dtype)


def strided(random: Random, tensor: torch.Tensor) -> torch.Tensor:
    """The same values in another layout: contiguous, transposed, or with gaps."""
    if tensor.dim() < 2 or not tensor.numel():
        return tensor
    layout = pick(random, "contiguous", "transposed", "gaps")
    if layout == "transposed":
        return tensor.transpose(-1, -2).contiguous().transpose(-1, -2)
    if layout == "gaps":
        shape = (*tensor.shape[:-1], tensor.shape[-1] + 3)
        room = torch.full(shape, 7.0).to(tensor.dtype)
        room[..., : tensor.shape[-1]] = tensor
        return room[..., : tensor.shape[-1]]
    return tensor


def lengths(random: Random, rows: int, longest: int) -> torch.Tensor:
    """int32 [rows], now and then zero."""
    return integers(random, 0, longest, rows)


def indptr(counts: torch.Tensor) -> torch.Tensor:
    return torch.cat([torch.zeros(1, dtype=torch.int32), counts.cumsum(0).int()])
