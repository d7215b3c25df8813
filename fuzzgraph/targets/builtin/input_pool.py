"""Input buffers that the runners of one session share.

A buffer is known by name, element count, dtype and device, so that two runners get the same memory
exactly when both would allocate the same.
"""

from __future__ import annotations

from math import prod

import torch

Key = tuple[str, int, torch.dtype, torch.device]


class InputPool:
    """Hands out one buffer per key."""

    def __init__(self) -> None:
        self.buffers: dict[Key, torch.Tensor] = {}

    def key(
        self, name: str, shape: tuple[int, ...], dtype: torch.dtype, device: torch.device
    ) -> Key:
        return (name, prod(shape), dtype, device)

    def share(
        self,
        name: str,
        shape: tuple[int, ...],
        dtype: torch.dtype,
        device: torch.device,
        fill: int,
    ) -> torch.Tensor:
        """The buffer of this key, allocated and filled with `fill` when first asked for."""
        key = self.key(name, shape, dtype, device)
        if key not in self.buffers:
            self.buffers[key] = torch.full(shape, fill, dtype=dtype, device=device)
        return self.buffers[key].view(shape)
