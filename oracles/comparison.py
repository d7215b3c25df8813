"""How two tensors are compared: bit for bit, or within a yardstick. Shared by the oracles."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch

from fuzzgraph.format_numbers import counted

__all__ = ["Difference", "beyond_yardstick", "first_difference", "same_bits", "tolerance"]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


@dataclass(frozen=True, slots=True)
class Difference:
    """Where two tensors part, and by how much."""

    index: tuple[int, ...]
    got: float
    want: float
    count: int
    """Elements that differ."""

    forms: tuple[str, str] | None = None
    """Shapes and dtypes, got and wanted, where these differ and no values were compared."""

    @property
    def swapped(self) -> Difference:
        """The same with the other tensor accused."""
        forms = None if self.forms is None else (self.forms[1], self.forms[0])
        return Difference(self.index, self.want, self.got, self.count, forms)

    def __str__(self) -> str:
        if self.forms is not None:
            return f": got {self.forms[0]}, expected {self.forms[1]}"
        place = ", ".join(map(str, self.index))
        got, want = f"{self.got:g}", f"{self.want:g}"
        if got == want:  # apart in the last bits only: say all of them
            got, want = repr(self.got), repr(self.want)
        return f"[{place}]: got {got}, expected {want} ({counted(self.count, 'element')} differ)"


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether shape, dtype and every bit agree (NaN equals the same NaN, 0.0 differs from -0.0)."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not got.dtype.is_floating_point:
        return torch.equal(got, want)
    bits = _BITS[got.element_size()]
    return torch.equal(got.contiguous().view(bits), want.contiguous().view(bits))


def first_difference(got: torch.Tensor, want: torch.Tensor) -> Difference | None:
    """The first place where the two differ in bits, or None."""
    if same_bits(got, want):
        return None
    if got.shape != want.shape or got.dtype != want.dtype:
        return _sizes_differ(got, want)
    bits = _BITS[got.element_size()]
    unequal = got.contiguous().view(bits) != want.contiguous().view(bits)
    return _at(unequal, got, want)


_SOFTMAX = 4 * torch.finfo(torch.float32).eps
"""Relative error of softmax's weights: a logit of some units is rounded by as many eps."""


def tolerance(dtype: torch.dtype, value_bound: float, plain_error: float = 0.0) -> float:
    """How far a value of a floating `dtype` may lie from the truth: the yardstick.

    FlashAttention's rule: at most twice the error of plain torch in the same dtype, plus
    `eps * value_bound` for outputs that nearly cancel, and what the softmax loses in float32
    whatever the dtype, where plain torch had luck.
    """
    return (torch.finfo(dtype).eps + _SOFTMAX) * value_bound + 2.0 * plain_error


def beyond_yardstick(
    got: torch.Tensor,
    want: torch.Tensor,
    plain_error: Callable[[], float],
    value_bound: float,
    dtype: torch.dtype,
) -> Difference | None:
    """The worst place whose error exceeds the yardstick, `tolerance`, or None.

    Integers must be equal.

    Args:
        got: the engine's values. Their own dtype allows them nothing.
        want: float64 (or integer) truth of the same shape.
        plain_error: gives the largest error against the truth of what plain torch computes in the
            engine's dtype; asked only where `value_bound` does not settle it.
        value_bound: max |V|.
        dtype: the floating dtype in which the model has to compute.
    """
    if got.shape != want.shape:
        return _sizes_differ(got, want)
    if not got.numel():
        return None
    want = want.to(got.device)  # the truth is computed on the host
    if not got.dtype.is_floating_point:
        return _at(got != want.to(got.dtype), got, want)
    error = (got.double() - want).abs()
    worst = float(error.max())
    if worst <= tolerance(dtype, value_bound):  # false for NaN
        return None
    slack = tolerance(dtype, value_bound, plain_error())
    if worst <= slack:
        return None
    return _at(~(error <= slack), got, want)


def _sizes_differ(got: torch.Tensor, want: torch.Tensor) -> Difference:
    sizes = got.numel(), want.numel()
    count = max(abs(sizes[0] - sizes[1]), 1)
    return Difference((), float(sizes[0]), float(sizes[1]), count, (_form(got), _form(want)))


def _form(tensor: torch.Tensor) -> str:
    return f"{list(tensor.shape)} of {str(tensor.dtype).removeprefix('torch.')}"


def _at(unequal: torch.Tensor, got: torch.Tensor, want: torch.Tensor) -> Difference | None:
    count = int(unequal.sum())
    if not count:
        return None
    flat = int(unequal.reshape(-1).to(torch.uint8).argmax())
    # NumPy's, because torch's own imports a symbolic algebra package: half a second, tens of MiB
    index = tuple(int(i) for i in np.unravel_index(flat, tuple(unequal.shape)))
    return Difference(index, float(got[index]), float(want[index]), count)
