"""Tells which memory a launch may touch: the views that were passed, and all known memory.

An access is checked against the *view* of the argument that its pointer was derived from: its
extent, the gaps that its strides leave, and, where the caller names regions (guarded memory does),
the payload of the region it starts in. Known memory is what may be dereferenced at all: the
storages behind the arguments and what the caller vouches for. A wild pointer into any other memory
gives a record instead of a crash.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterable, Sequence
from functools import lru_cache
from math import prod
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

Array = npt.NDArray[Any]
Span = tuple[int, int]
Named = tuple[str, int, int]
"""Name, first byte and end of the payload of a region, as addresses."""

# Elements of the largest strided view whose gaps are looked up; beyond, only its extent counts.
_LARGEST_GAP_TABLE = 1 << 22


class RegionMap(Protocol):
    """Names memory by address; guarded memory does."""

    def region_at(self, address: int) -> Named | None:
        """The region whose payload or red zones contain this address."""

    def end_from(self, address: int) -> int:
        """Up to where a view that starts here may be accessed although it is shorter; 0 if no
        further than it says."""

    def spans(self) -> Sequence[Span]:
        """Memory that may be dereferenced, apart from the storages of the arguments."""


class View:
    """The memory of one tensor argument.

    Args:
        name: of the argument.
        start: address of the first element.
        nbytes: from the first to the end of the last element that may be accessed.
        itemsize: bytes of an element.
        allowed: bool [elements of the extent], False in gaps; None for a view without gaps.
    """

    __slots__ = (
        "_arrays",
        "allowed",
        "beside",
        "end",
        "itemsize",
        "keeps_loads",
        "name",
        "nbytes",
        "region",
        "start",
        "unlogged",
        "written",
    )

    def __init__(
        self, name: str, start: int, nbytes: int, itemsize: int, allowed: Array | None = None
    ) -> None:
        self.name = name
        self.start = start
        self.nbytes = nbytes
        self.end = start + nbytes
        self.itemsize = itemsize
        self.allowed = allowed
        self.region = ""
        self.written: Array | None = None
        """bool [elements], shared by all launches; None unless unwritten memory is checked."""
        self.beside: Sequence[View] = (self,)
        """The views of its launch, itself included."""
        # Loads are logged for the race check only where the kernel also writes: most arguments are
        # read only, and a log of all their loads would cost more than the loads.
        self.keeps_loads = False
        self.unlogged = False
        """Whether loads were carried out without being logged."""
        self._arrays: dict[int, Array] = {}

    def array(self, size: int) -> Array:
        """The memory as unsigned integers of `size` bytes, from the first element on."""
        found = self._arrays.get(size)
        if found is None:
            found = self._arrays[size] = _memory(self.start, self.nbytes // size, size)
        return found

    @property
    def is_patchy(self) -> bool:
        """Whether it has gaps, or elements whose writing is watched."""
        return self.allowed is not None or self.written is not None

    @property
    def aliases(self) -> list[View]:
        """Views of the same launch that overlap this one, itself included."""
        return [each for each in self.beside if each is self or each.overlaps(self)]

    def overlaps(self, other: View) -> bool:
        return self.start < other.end and other.start < self.end


# It owns nothing: memory that is gone is looked at only through a view that is still there.
@lru_cache(maxsize=4096)
def _memory(start: int, count: int, size: int) -> Array:
    """So many unsigned integers of `size` bytes from an address on."""
    # Unsigned integers of the access's size: bits are moved as they are, NaNs included, and numpy
    # has no bfloat16 or float8.
    raw = (ctypes.c_uint8 * (count * size)).from_address(start)
    found: Array = np.frombuffer(memoryview(raw), dtype=np.uint8).view(f"u{size}")
    return found


def view_of(name: str, tensor: torch.Tensor, regions: RegionMap | None) -> View:
    """The view of a tensor argument, clipped to the payload of its region."""
    itemsize = tensor.dtype.itemsize
    elements, allowed = tensor.numel(), None
    if elements and not tensor.is_contiguous():
        elements, allowed = _extent(tuple(tensor.shape), tuple(tensor.stride()))
    start = tensor.data_ptr()
    nbytes = elements * itemsize
    named = None
    if regions is not None and start:
        named = regions.region_at(start)
        nbytes = max(nbytes, regions.end_from(start) - start)
    if named is not None:
        # A view made by hand (`as_strided`) may reach out of its buffer. It may then start in the
        # red zone before the payload, where no byte may be accessed.
        nbytes = max(0, min(nbytes, named[2] - start)) if start >= named[1] else 0
    view = View(name, start, nbytes, itemsize, allowed)
    if named is not None:
        view.region = named[0]
    return view


@lru_cache(maxsize=256)
def _extent(size: tuple[int, ...], stride: tuple[int, ...]) -> tuple[int, Array | None]:
    """Elements from the first to the last one of a view, and its table of gaps, if it has any."""
    elements = 1 + sum((n - 1) * s for n, s in zip(size, stride, strict=True))
    # Only a view whose extent is longer than its elements has gaps.
    if not prod(size) < elements <= _LARGEST_GAP_TABLE:
        return elements, None
    # Write through a view of the same strides: what it does not reach is a gap.
    table = np.zeros(elements, dtype=np.bool_)
    np.lib.stride_tricks.as_strided(table, size, stride)[...] = True
    return elements, None if table.all() else table


class KnownMemory:
    """Address ranges that may be dereferenced, merged and sorted."""

    def __init__(self, spans: Iterable[Span]) -> None:
        starts: list[int] = []
        ends: list[int] = []
        for start, end in sorted(span for span in spans if span[1] > span[0]):
            if ends and start <= ends[-1]:
                ends[-1] = max(ends[-1], end)
            else:
                starts.append(start)
                ends.append(end)
        self.ranges = list(zip(starts, ends, strict=True))
        self._starts = np.array(starts, dtype=np.uint64)
        self._ends = np.array(ends, dtype=np.uint64)

    def holds(self, addresses: Array, size: int) -> Array:
        """bool, like `addresses`: whether `size` bytes from there are known."""
        if not len(self._starts):
            return np.zeros(addresses.shape, dtype=np.bool_)
        # The last range that starts at or before each address; -1 where there is none.
        last = np.searchsorted(self._starts, addresses, side="right") - 1
        inside: Array = (last >= 0) & (addresses <= self._ends[last] - np.uint64(size))
        return inside


def mapped_memory(rights: str) -> KnownMemory:
    """Memory to which this process has `rights` ("r" or "rw")."""
    # Read anew each time, since the process maps memory as it runs; few accesses come here.
    spans: list[Span] = []
    try:
        with open("/proc/self/maps") as file:
            for line in file:
                bounds, granted = line.split(maxsplit=2)[:2]
                if granted.startswith(rights):
                    first, _, last = bounds.partition("-")
                    spans.append((int(first, 16), int(last, 16)))
    except OSError:  # no such file outside of Linux: then no unknown address is followed
        pass
    return KnownMemory(spans)
