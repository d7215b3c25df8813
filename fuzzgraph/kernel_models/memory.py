"""What a model of a kernel may do with memory: read and write by index, each access checked.

A kernel has an address and offsets, no bounds. An index inside its tensor is followed as it is; one
outside is followed into the memory that lies there, as a device would, and recorded as a stray
access. Under guarded memory that is a red zone or a neighbour. Memory outside of the tensor's
storage is not touched: a read gives 0 and a write does nothing, and the record says so.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch

from fuzzgraph.accesses import AccessKind

__all__ = ["Ints", "KernelMemory", "Report", "Stray", "as_numbers"]

Ints = npt.NDArray[np.int64]

# Torch's own: while an engine runs, `memory.transfers` has others in the place of `Tensor.to` and
# its like. What a kernel does with memory is no copy between host and device.
_TO = torch._C.TensorBase.to
_NUMPY = torch._C.TensorBase.numpy
_FROM_NUMPY = torch.from_numpy
_LEAST = np.minimum.reduce
_GREATEST = np.maximum.reduce
# Numpy reads and writes a few numbers in a third of the time that torch's indexing takes.
_IN_NUMPY = frozenset(
    (torch.float64, torch.float32, torch.float16, torch.int64, torch.int32, torch.int16,
     torch.int8, torch.uint8, torch.bool)
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Stray:
    """Indices of one access that miss the argument they belong to."""

    kind: AccessKind
    argument: str
    tensor: torch.Tensor
    offsets: Ints
    """Elements from the argument's first one."""
    first: int
    """Which of all indices of the access is the first to miss."""
    mapped: bool
    """Whether all of them lie in the argument's storage, so that a device would not fault."""


class Report(Protocol):
    """Takes what a launch did wrong."""

    def stray(self, found: Stray) -> None: ...

    def misuse(self, argument: str, rule: str, got: str) -> None: ...


class KernelMemory:
    """The memory of one launch; what the launch does wrong goes to `report`."""

    def __init__(self, report: Report) -> None:
        self._report = report
        self.attended: list[tuple[torch.Tensor, int, Any, Any]] = []
        """For each call of `attends`: cache of keys, query tokens, rows, softmax."""

    def attends(self, q: torch.Tensor, keys: torch.Tensor, rows: Any, softmax: Any) -> None:
        """Take down the meaning of a launch: which keys each query token sees.

        Args:
            q: [T, ...] the queries.
            keys: the cache that `attention.Row.keys` index.
            rows: `attention.Row`s; softmax: an `attention.Softmax`.
        """
        self.attended.append((keys, len(q), rows, softmax))

    # ---- what the kernel asks of the content of its arguments

    def misused(self, argument: str, rule: str, got: str) -> None:
        """Record that an argument's content breaks a rule of the kernel, which goes on.

        Args:
            argument: name of the kernel's argument.
            rule: what must hold, as a sentence about the argument.
            got: the value that breaks it, and where.
        """
        self._report.misuse(argument, rule, got)

    # ---- reading and writing

    @staticmethod
    def ints(tensor: torch.Tensor) -> Ints:
        """Integers of a whole argument; lengths, offsets. Reads nothing else."""
        found: Ints = _array(tensor).astype(np.int64)
        return found

    def entries(self, name: str, tensor: torch.Tensor, *index: Ints) -> Ints:
        """The integers of an argument at `index`, one array [n] for each of its dimensions."""
        if _all_inside(tensor, index):
            found: Ints = _array(tensor)[index].astype(np.int64)
            return found
        return self.ints(self.rows(name, tensor, *index))

    def numbers(
        self, name: str, tensor: torch.Tensor, *index: Ints, scale: float = 1.0
    ) -> npt.NDArray[np.float64]:
        """float64 [n, ...] the parts at `index`, times a scale; fp8 and bfloat16 as well."""
        if tensor.dtype in _IN_NUMPY and _all_inside(tensor, index):
            return _scaled(_array(tensor)[index].astype(np.float64), scale)
        return as_numbers(self.rows(name, tensor, *index), scale)

    def rows(self, name: str, tensor: torch.Tensor, *index: Ints) -> torch.Tensor:
        """[n, ...] the parts at `index`, which has one array [n] for each leading dimension."""
        if _all_inside(tensor, index):
            return tensor[tuple(map(_FROM_NUMPY, index))]
        inside = _inside(tensor, index)
        offsets = _offsets(tensor, index)
        windows, reachable = _windows(tensor, offsets, len(index))
        self._record("read", name, tensor, offsets, ~inside, reachable)
        # One by one: fp8 has neither masked writes nor, in older torch, zeros.
        found = torch.empty((len(offsets), *tensor.shape[len(index) :]), dtype=tensor.dtype)
        found.view(torch.uint8).zero_()
        for at in np.flatnonzero(reachable):
            found[at].copy_(windows[int(offsets[at])])
        return found

    def store(
        self,
        name: str,
        tensor: torch.Tensor,
        values: torch.Tensor | npt.NDArray[Any],
        *index: Ints,
    ) -> None:
        """Write `values` [n, ...] to the parts at `index`; the last of equals wins."""
        if isinstance(values, np.ndarray):
            values = _FROM_NUMPY(values)
        if _all_inside(tensor, index):
            stored = _TO(values, tensor.dtype)
            if tensor.dtype in _IN_NUMPY:
                _array(tensor)[index] = _array(stored)
            else:
                tensor[tuple(map(_FROM_NUMPY, index))] = stored
            return
        inside = _inside(tensor, index)
        offsets = _offsets(tensor, index)
        windows, reachable = _windows(tensor, offsets, len(index))
        self._record("write", name, tensor, offsets, ~inside, reachable)
        for at in np.flatnonzero(reachable):
            windows[int(offsets[at])].copy_(values[at])

    def _record(
        self,
        kind: AccessKind,
        name: str,
        tensor: torch.Tensor,
        offsets: Ints,
        stray: npt.NDArray[np.bool_],
        reachable: npt.NDArray[np.bool_],
    ) -> None:
        self._report.stray(
            Stray(
                kind,
                name,
                tensor,
                offsets[stray] - int(tensor.storage_offset()),
                int(np.flatnonzero(stray)[0]),
                bool(reachable[stray].all()),
            )
        )


def _array(tensor: torch.Tensor) -> npt.NDArray[Any]:
    """The memory of a tensor on the host, as numpy's; its dtype must be one that numpy has."""
    found: npt.NDArray[Any] = _NUMPY(tensor.detach() if tensor.requires_grad else tensor)
    return found


def _all_inside(tensor: torch.Tensor, index: tuple[Ints, ...]) -> bool:
    """Whether every index lies within the dimension that it counts along."""
    for each, size in zip(index, tensor.shape, strict=False):
        if len(each) and (_LEAST(each) < 0 or _GREATEST(each) >= size):
            return False
    return True


def _inside(tensor: torch.Tensor, index: tuple[Ints, ...]) -> npt.NDArray[np.bool_]:
    """[n] whether an index lies within each dimension that it counts along."""
    pairs = zip(index, tensor.shape, strict=False)
    found: npt.NDArray[np.bool_] = np.logical_and.reduce(
        [(each >= 0) & (each < size) for each, size in pairs]
    )
    return found


def _offsets(tensor: torch.Tensor, index: tuple[Ints, ...]) -> Ints:
    """[n] element of the storage where each part begins."""
    found = np.full(len(index[0]), tensor.storage_offset(), dtype=np.int64)
    for each, stride in zip(index, tensor.stride(), strict=False):
        found += each * stride
    return found


def _windows(
    tensor: torch.Tensor, offsets: Ints, leading: int
) -> tuple[torch.Tensor, npt.NDArray[np.bool_]]:
    """(a part of the argument's shape at every element of its storage, [n] which are there)."""
    shape, stride = tensor.shape[leading:], tensor.stride()[leading:]
    length = 1 + sum((size - 1) * step for size, step in zip(shape, stride, strict=True))
    elements = tensor.untyped_storage().nbytes() // tensor.element_size()
    count = max(0, elements - length + 1)
    windows = tensor.as_strided((count, *shape), (1, *stride), 0)
    return windows, (offsets >= 0) & (offsets < count)


def as_numbers(tensor: torch.Tensor, scale: float = 1.0) -> npt.NDArray[np.float64]:
    """float64 on the host; fp8 and bfloat16 as well."""
    if tensor.dtype in _IN_NUMPY:
        return _scaled(_array(tensor).astype(np.float64), scale)
    return _scaled(_array(_TO(tensor, torch.float64)), scale)


def _scaled(numbers: npt.NDArray[np.float64], scale: float) -> npt.NDArray[np.float64]:
    return numbers * np.float64(scale) if scale != 1.0 else numbers
