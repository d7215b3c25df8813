"""How two tensors are compared: bit for bit, or with a tolerance against the truth."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch

from fuzzgraph.text.numbers import counted

__all__ = [
    "Difference",
    "beyond_tolerance",
    "bits",
    "first_difference",
    "same_bits",
    "tolerance",
    "wrong_form",
]

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


def bits(tensor: torch.Tensor) -> torch.Tensor:
    """The same bytes as integers, so that NaN equals itself and 0.0 differs from -0.0."""
    return tensor.contiguous().view(_BITS[tensor.element_size()])


@dataclass(frozen=True, slots=True)
class Difference:
    """The first or worst place where two tensors differ, and how many places do."""

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
        differ = "differs" if self.count == 1 else "differ"
        return f"[{place}]: got {got}, expected {want} ({counted(self.count, 'element')} {differ})"


def same_bits(got: torch.Tensor, want: torch.Tensor) -> bool:
    """Whether shape, dtype and every bit agree (NaN equals the same NaN, 0.0 differs from -0.0)."""
    if got.shape != want.shape or got.dtype != want.dtype:
        return False
    if not got.dtype.is_floating_point:
        return torch.equal(got, want)
    return torch.equal(bits(got), bits(want))


def first_difference(got: torch.Tensor, want: torch.Tensor) -> Difference | None:
    """The first place where the two differ in bits, or None."""
    if same_bits(got, want):
        return None
    if got.shape != want.shape or got.dtype != want.dtype:
        return _sizes_differ(got, want)
    return _at(bits(got) != bits(want), got, want)


# Softmax in float32: a logit of about 4 is rounded by 4 eps, and its weight with it.
_SOFTMAX = 4 * torch.finfo(torch.float32).eps


def tolerance(dtype: torch.dtype, value_bound: float, plain_error: float = 0.0) -> float:
    """How far a value of a floating `dtype` may lie from the truth.

    FlashAttention's rule: at most twice the error of plain torch in the same dtype, plus
    `eps * value_bound` for outputs that nearly cancel, plus what softmax loses in float32 whatever
    the dtype, for inputs on which plain torch happens to be exact.
    """
    return (torch.finfo(dtype).eps + _SOFTMAX) * value_bound + 2.0 * plain_error


def beyond_tolerance(
    got: torch.Tensor,
    want: torch.Tensor,
    plain_error: Callable[[], float],
    value_bound: float,
    dtype: torch.dtype,
    relative: float = 0.0,
    absolute: float | torch.Tensor = 0.0,
) -> Difference | None:
    """The worst place whose error exceeds `tolerance`, or None.

    Integers must be equal.

    Args:
        got: the engine's values. Their own dtype allows them nothing.
        want: float64 (or integer) truth of the same shape.
        plain_error: gives the largest error against the truth of what plain torch computes in the
            engine's dtype; asked only where `value_bound` does not settle it.
        value_bound: max |V|.
        dtype: the floating dtype in which the model has to compute.
        relative: how far the model itself takes a value from the truth, as a part of the value: it
            quantises, say.
        absolute: the same for small values; or of each element, of the same shape.
    """
    if got.shape != want.shape:
        return _sizes_differ(got, want)
    if not got.numel():
        return None
    want = want.to(got.device)  # the truth is computed on the host
    if not got.dtype.is_floating_point:
        return _at(got != want.to(got.dtype), got, want)
    # What the model's own rounding explains is taken off; it rounds what was already off as well.
    if isinstance(absolute, torch.Tensor):
        absolute = absolute.to(got.device)
    explained = relative * want.abs() + absolute
    error = ((got.double() - want).abs() - explained) / (1.0 + relative)
    worst = float(error.max())
    if worst <= tolerance(dtype, value_bound):  # false for NaN
        return None
    slack = tolerance(dtype, value_bound, plain_error())
    if worst <= slack:
        return None
    return _at(~(error <= slack), got, want)


def wrong_form(got: torch.Tensor, shape: tuple[int, ...], dtypes: tuple[torch.dtype, ...]) -> str:
    """How an output differs from the shape and dtypes that the step promises; '' if it does not."""
    if tuple(got.shape) != shape:
        return f"has shape {list(got.shape)}, the step promises {list(shape)}"
    if got.dtype not in dtypes:
        actual, wanted = (str(dtype)[6:] for dtype in (got.dtype, dtypes[0]))
        return f"has dtype {actual}, the model computes it in {wanted}"
    return ""


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
    index: tuple[int, ...] = ()
    for size in reversed(unequal.shape):  # torch.unravel_index would import sympy: 0.5 s
        flat, at = divmod(flat, size)
        index = (at, *index)
    return Difference(index, float(got[index]), float(want[index]), count)
