"""Where a tensor lies, and how to say it in Python: as a slice of a named one if possible.

Works on addresses alone, so views that the engine made long before are found as well. Which tensors
have names is `naming`'s and `printing`'s business.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Address and form of a strided tensor."""

    address: int
    """Bytes."""
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype

    @property
    def end(self) -> int:
        """First byte behind the last element it can reach."""
        if 0 in self.shape:
            return self.address
        last = sum((n - 1) * s for n, s in zip(self.shape, self.stride, strict=True))
        return self.address + (last + 1) * self.dtype.itemsize

    @property
    def elements(self) -> int:
        count = 1
        for size in self.shape:
            count *= size
        return count


def place_of(tensor: torch.Tensor) -> Place:
    """The place of a strided tensor."""
    return Place(tensor.data_ptr(), tuple(tensor.shape), tensor.stride(), tensor.dtype)


def slice_text(base: Place, want: Place) -> str | None:
    """What to append to the name of `base` to get `want`, e.g. `[:4]`; None if no slice does.

    >>> base = Place(0, (8, 4), (4, 1), torch.int32)
    >>> slice_text(base, Place(16, (2, 4), (4, 1), torch.int32))
    '[1:3]'
    >>> slice_text(base, Place(4, (8,), (4,), torch.int32))
    '[:, 1]'
    """
    if want == base:
        return ""
    if base.dtype != want.dtype:
        return _retyped(base, want)
    offset, rest = divmod(want.address - base.address, base.dtype.itemsize)
    if rest or offset < 0:
        return None
    index = _index(base, want, offset)
    if index is None or not _gives(base, want, index, offset):
        return _unsqueezed(base, want)
    while index and index[-1] == slice(None):
        index.pop()
    return f"[{', '.join(map(_part_text, index))}]" if index else ""


def _unsqueezed(base: Place, want: Place) -> str | None:
    """The slice without dimensions of size 1, then these."""
    singles = [dim for dim, size in enumerate(want.shape) if size == 1]
    if not singles:
        return None
    kept = [dim for dim, size in enumerate(want.shape) if size != 1]
    shape = tuple(want.shape[dim] for dim in kept)
    stride = tuple(want.stride[dim] for dim in kept)
    first = slice_text(base, Place(want.address, shape, stride, want.dtype))
    if first is None:
        return None
    return first + "".join(f".unsqueeze({dim})" for dim in singles)


def _retyped(base: Place, want: Place) -> str | None:
    same = Place(want.address, want.shape, want.stride, base.dtype)
    if base.dtype.itemsize != want.dtype.itemsize:
        return None
    first = slice_text(base, same)
    return None if first is None else f"{first}.view({want.dtype})"


def _index(base: Place, want: Place, offset: int) -> list[Any] | None:
    """Integers and slices, one per dimension of `base`."""
    index: list[Any] = []
    kept = list(zip(want.shape, want.stride, strict=True))
    for size, stride in zip(base.shape, base.stride, strict=True):
        start = offset // stride if stride else 0
        offset -= start * stride
        if start >= max(size, 1) and size:
            return None
        left = len(base.shape) - len(index)
        if kept and (kept[0][1] == stride or len(kept) == left):
            count = kept.pop(0)[0]
            if start + count > size:
                return None
            whole = start == 0 and count == size
            index.append(slice(None) if whole else slice(start or None, start + count))
        else:
            index.append(start)
    return None if offset or kept else index


def _gives(base: Place, want: Place, index: list[Any], offset: int) -> bool:
    """Whether the index really leads there: tried on a tensor without memory."""
    try:
        sample = torch.empty_strided(base.shape, base.stride, dtype=base.dtype, device="meta")
        found = sample[tuple(index)]
    except (IndexError, RuntimeError):
        return False
    same = tuple(found.shape) == want.shape and bool(found.storage_offset() == offset)
    strides = zip(found.shape, found.stride(), want.stride, strict=False)
    return same and all(size == 1 or one == two for size, one, two in strides)


def _part_text(part: Any) -> str:
    if not isinstance(part, slice):
        return str(part)
    start = "" if part.start is None else str(part.start)
    stop = "" if part.stop is None else str(part.stop)
    return f"{start}:{stop}"
