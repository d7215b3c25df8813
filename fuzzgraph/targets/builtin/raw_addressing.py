"""Addresses memory as a kernel does: by base plus offset, without bounds of its own.

Plain torch indexing raises past the end and wraps negative indices; a device does neither. Under
guarded memory a tensor is a view of one arena, so that an access past a buffer lands in its red
zone or in a neighbour. Only leaving the arena altogether raises (IndexError, from torch).
"""

from __future__ import annotations

import torch


def _elements(tensor: torch.Tensor) -> int:
    """Elements of the tensor's dtype in its whole storage."""
    return tensor.untyped_storage().nbytes() // tensor.element_size()


def reach(tensor: torch.Tensor, elements: int) -> torch.Tensor:
    """`elements` consecutive elements from the tensor's first one on, past its end if need be.

    Ends with the arena at the latest.
    """
    start = tensor.storage_offset()
    return tensor.as_strided((min(elements, _elements(tensor) - start),), (1,), start)


class Flat:
    """A tensor's storage element by element: element i of the tensor is `view[base + i]`."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.base = int(tensor.storage_offset())
        self.view = tensor.as_strided((_elements(tensor),), (1,), 0)

    def load(self, places: torch.Tensor) -> torch.Tensor:
        """The elements at int64 `places`, base included, copied."""
        return torch.take(self.view, places)


class Rows:
    """A contiguous tensor's storage row by row: row i of the tensor is `view[base + i]`.

    `columns` takes every n-th column of a two-dimensional tensor only.
    """

    def __init__(self, tensor: torch.Tensor, columns: int = 1) -> None:
        stride = tensor.stride(0)
        start = tensor.storage_offset() % stride
        self.base = int(tensor.storage_offset()) // stride
        rows = (_elements(tensor) - start) // stride
        shape, strides = [rows, *tensor.shape[1:]], list(tensor.stride())
        if columns > 1:
            shape[1] = -(-shape[1] // columns)
            strides[1] = columns
        self.view = tensor.as_strided(shape, strides, start)

    def gather(self, rows: torch.Tensor) -> torch.Tensor:
        """[n, ...] the named rows, copied."""
        return self.view.index_select(0, rows + self.base)


class RowWriter:
    """Stores rows of a contiguous tensor: `windows[start + i * stride]` is its row i.

    The view has a window at every element, so that torch, which refuses to copy between views of
    one storage where it can tell that they overlap, cannot tell.
    """

    def __init__(self, tensor: torch.Tensor) -> None:
        self.stride = tensor.stride(0)
        self.start = torch.tensor(tensor.storage_offset(), device=tensor.device)
        windows = _elements(tensor) - self.stride + 1
        self.windows = tensor.as_strided((windows, *tensor.shape[1:]), (1, *tensor.stride()[1:]), 0)

    def scatter(self, rows: torch.Tensor, values: torch.Tensor) -> None:
        """Write `values` [n, ...] to the rows named by int64 `rows` [n]."""
        places = torch.add(self.start, rows, alpha=self.stride)
        self.windows.index_copy_(0, places, values)
