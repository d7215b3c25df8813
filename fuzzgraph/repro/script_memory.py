"""What a script does with memory and prints, as functions that are embedded in it.

They are ordinary functions here, read by people and type checkers alike, and never called here: the
names declared below are assigned by the script itself, from the engine's own memory.
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

import torch

from fuzzgraph.rules.writes import overrun

if TYPE_CHECKING:  # the script assigns them
    HEADLINE: str = ""
    MEMORY: torch.Tensor = torch.empty(0)
    SPANS: list[tuple[int, int]] = []
    ZONES: dict[int, tuple[int, int, int, int]] = {}
    POISON: dict[torch.dtype, tuple[float, float]] = {}
    world: int = 0


def unpacked(dtype: torch.dtype, shape: tuple[int, ...], *parts: str) -> torch.Tensor:
    """Content too long to write out: base85 of zlib."""
    raw = bytearray(zlib.decompress(base64.b85decode("".join(parts))))
    return torch.frombuffer(raw, dtype=torch.uint8).view(dtype).view(shape).to(MEMORY.device)


def region(
    offset: int,
    shape: tuple[int, ...],
    dtype: torch.dtype,
    zones: tuple[int, int],
    fill: float = 0,
    stride: tuple[int, ...] | None = None,
) -> torch.Tensor:
    """A buffer where the engine allocated it, between red zones of so many bytes."""
    size = dtype.itemsize
    stride = stride or torch.empty(shape, device="meta").stride()
    buffer = MEMORY.view(dtype).as_strided(shape, stride, offset // size)
    payload = 0
    if 0 not in shape:
        payload = sum((n - 1) * s for n, s in zip(shape, stride, strict=True)) + 1
    first = offset // size
    start, end = (offset - zones[0]) // size, first + payload + zones[1] // size
    ZONES[buffer.data_ptr()] = (start, first, first + payload, end)
    poison_zones(buffer, 0)
    if payload:
        buffer.copy_(filled(shape, fill, dtype))
    return buffer


def filled(shape: tuple[int, ...], value: float, dtype: torch.dtype) -> torch.Tensor:
    """`torch.full`, also for 8-bit floats, which it does not fill."""
    narrow = dtype.is_floating_point and dtype.itemsize == 1
    return torch.full(shape, value, dtype=torch.float32 if narrow else dtype).to(dtype)


def poison(buffer: torch.Tensor) -> None:
    """What a buffer holds that nobody has written."""
    if buffer.numel():
        buffer.copy_(filled(buffer.shape, POISON[buffer.dtype][world], buffer.dtype))


def poison_zones(buffer: torch.Tensor, which: int) -> None:
    """Write the red zones of a buffer as world `which` has them."""
    flat = MEMORY.view(buffer.dtype)
    start, first, stop, end = ZONES[buffer.data_ptr()]
    for part in (flat[start:first], flat[stop:end]):
        part.copy_(filled(part.shape, POISON[buffer.dtype][which], buffer.dtype))


def save() -> list[torch.Tensor]:
    """A copy of all that the engine allocated."""
    return [MEMORY[start:end].clone() for start, end in SPANS]


def restore(saved: list[torch.Tensor]) -> None:
    """Put memory back to what it was."""
    for (start, end), part in zip(SPANS, saved, strict=True):
        MEMORY[start:end] = part


def overruns(name: str, buffer: torch.Tensor, allocated_at: str) -> Iterator[str]:
    """What was written into the red zones of a buffer."""
    flat = MEMORY.view(buffer.dtype)
    start, first, stop, end = ZONES[buffer.data_ptr()]
    clean = filled((1,), POISON[buffer.dtype][0], buffer.dtype)
    for side, zone in (("before", flat[start:first]), ("after", flat[stop:end])):
        hit = overrun(side, zone, clean)
        if hit is not None:
            yield hit.text(name, stop - first, allocated_at)


def report(found: Iterable[str]) -> int:
    """Print what was found; the exit code."""
    lines = list(found)
    if not lines:
        print("Not reproduced.")
        return 0
    print(HEADLINE)
    for line in lines:
        print(f"  {line}")
    return 1
