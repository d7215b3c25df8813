"""The byte arena: one block of device memory that holds every guarded allocation of a session.

Because all guarded memory lies in one storage, snapshot, restore, red-zone check and the change
of worlds are a few operations each. The arena hands out aligned typed views; `placement` decides
which allocation goes where.

The block never moves, so addresses stay valid for the life of a session. A full arena raises an
error that says how to get a larger one.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from fuzzgraph.errors import AdapterUnavailable, ArenaFull, UsageError
from fuzzgraph.memory.poison import ROW_BYTES

# Address space, not memory: the operating system backs only the pages that are touched, 4 MiB for
# a usual session. Not larger by default, because `ulimit -v` counts addresses and two dozen
# sessions are kept open.
_CPU_CAPACITIES = (128 << 20, 512 << 20)
# A device allocates all of it at once. The larger ones are for pools of serving shapes.
_DEVICE_CAPACITIES = (64 << 20, 512 << 20, 4 << 30, 32 << 30)
MARGIN_BYTES = 64 << 10
"""Unused bytes around each part, so that a kernel that overruns by strides stays in the arena."""


def capacities(device: torch.device) -> tuple[int, ...]:
    """Sizes in bytes to try one after the other, for sessions that do not fit the one before; on a
    device those that its free memory holds, the first of them in any case."""
    if device.type == "cpu":
        return _CPU_CAPACITIES
    free = torch.cuda.mem_get_info(device)[0]
    first, *larger = _DEVICE_CAPACITIES
    return first, *(size for size in larger if size <= free)


class Arena:
    """Aligned memory in three parts: engine from the front, graph pool from the middle, scratch."""

    def __init__(self, device: torch.device, capacity: int | None = None) -> None:
        if capacity is None:
            capacity = capacities(device)[0]
        # The smallest parts are quarters, and each ends in a margin: three quarters of them are
        # left for allocations then.
        if capacity < 16 * MARGIN_BYTES:
            raise UsageError(
                f"arena capacity={capacity} bytes is too small: its margins alone need room. "
                f"Use at least {16 * MARGIN_BYTES}."
            )
        self.device = device
        # Halves and quarters of it have to begin at a whole row of 64 bytes.
        self.capacity = capacity // (4 * ROW_BYTES) * (4 * ROW_BYTES)
        self.bytes = _allocated(self.capacity, device)
        # Copies and comparisons of poison go row by row: [rows, 8] of int64.
        self.rows = self.bytes.view(torch.int64).view(-1, ROW_BYTES // 8)
        self.address = self.bytes.data_ptr()
        self.storage_key = storage_key(self.bytes)
        # The engine's buffers get half, because they live as long as the session. Graph
        # intermediates and scratch get a quarter each.
        self.front = MARGIN_BYTES
        self.graph_front = self.capacity // 2
        self.scratch_front = self.capacity // 4 * 3
        self._ends: dict[str, int] = {
            "engine": self.graph_front - MARGIN_BYTES,
            "graph": self.scratch_front - MARGIN_BYTES,
            "scratch": self.capacity - MARGIN_BYTES,
        }
        self._typed: dict[torch.dtype, torch.Tensor] = {torch.uint8: self.bytes}

    def typed(self, dtype: torch.dtype) -> torch.Tensor:
        """The whole arena as elements of `dtype`; strided views of it are the allocations."""
        base = self._typed.get(dtype)
        if base is None:
            base = self._typed[dtype] = self.bytes.view(dtype)
        return base

    def view(
        self, offset: int, size: Sequence[int], stride: Sequence[int], dtype: torch.dtype
    ) -> torch.Tensor:
        """The tensor of this shape whose first element lies `offset` bytes into the arena."""
        # Exact: allocations start at a row of 64 bytes, and the size of every dtype divides 64.
        return self.typed(dtype).as_strided(size, stride, offset // dtype.itemsize)

    def claim(self, start: int, end: int, segment: str) -> None:
        """Check that bytes [start, end) still fit into a segment's part.

        Raises:
            ArenaFull: says how much was asked for and how to enlarge it.
        """
        limit = self._ends[segment]
        if end > limit:
            raise ArenaFull(
                f"guarded memory is full: an allocation of {end - start} bytes (red zones "
                f"included) does not fit into the {segment} part, {limit - start} bytes are left "
                f"of an arena of {self.capacity}. Use a smaller config, a device with more free "
                f"memory, or in a test of your own a GuardedMemory with a larger capacity."
            )


def _allocated(nbytes: int, device: torch.device) -> torch.Tensor:
    """
    Raises:
        AdapterUnavailable: the device has less memory than that.
    """
    try:
        return torch.empty(nbytes, dtype=torch.uint8, device=device)
    except torch.OutOfMemoryError as error:
        free, total = torch.cuda.mem_get_info(device)
        raise AdapterUnavailable(
            f"guarded memory asks for {nbytes} bytes on {device}, of whose {total} bytes {free} "
            "are free. End what else runs there, or name another device by CUDA_VISIBLE_DEVICES."
        ) from error


def address_of(tensor: torch.Tensor) -> int:
    """Where the first element lies; also for a tensor of size 0, which has no data pointer."""
    address = tensor.data_ptr()
    if address:
        return address
    start: int = tensor.untyped_storage().data_ptr()
    return start + int(tensor.storage_offset()) * tensor.dtype.itemsize


def storage_key(tensor: torch.Tensor) -> int:
    """Identity of the storage behind a tensor."""
    # The address of the C++ object. `data_ptr` would not do: empty storages share the address 0.
    key: int = tensor.untyped_storage()._cdata
    return key
