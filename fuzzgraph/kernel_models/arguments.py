"""What kinds of argument a function takes, by its annotations, as the binding of a kernel would.

Tensors are annotated with their number of dimensions where a kernel's documentation gives their
shape: `Tensor2` has two. A model looks at shapes before it checks what they are made of, and would
fail by itself on another number.
"""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Annotated, Any

import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.reading import reads_only

__all__ = [
    "Argument",
    "Tensor1",
    "Tensor2",
    "Tensor3",
    "Tensor3Or4",
    "Tensor4",
    "arguments_of",
    "check_arguments",
]


@dataclass(frozen=True, slots=True)
class _Dims:
    """How many dimensions a tensor may have."""

    numbers: tuple[int, ...]


Tensor1 = Annotated[torch.Tensor, _Dims((1,))]
Tensor2 = Annotated[torch.Tensor, _Dims((2,))]
Tensor3 = Annotated[torch.Tensor, _Dims((3,))]
Tensor4 = Annotated[torch.Tensor, _Dims((4,))]
Tensor3Or4 = Annotated[torch.Tensor, _Dims((3, 4))]

_SOURCE = "signature of the kernel's binding"
_DOCUMENTED = "shapes of the kernel's documentation"
_KINDS: dict[Any, type | tuple[type, ...]] = {
    torch.Tensor: torch.Tensor,
    torch.dtype: (torch.dtype, str),  # bindings take names of dtypes as well
    torch.device: (torch.device, str),
    int: Real,
    float: Real,
    bool: Real,
    str: str,
    type(None): type(None),
}
"""What an annotation takes. Plain numbers convert into each other in a binding."""


@dataclass(frozen=True, slots=True)
class Argument:
    """One argument whose kind an annotation tells."""

    kinds: tuple[type, ...]
    called: str
    """The annotation, for a message."""
    dims: tuple[int, ...] = ()
    """How many dimensions a tensor may have; () for any number."""


@cache
def arguments_of(function: Callable[..., Any]) -> Mapping[str, Argument]:
    """Those arguments of a function whose annotations say something that can be checked."""
    hints = typing.get_type_hints(function, include_extras=True)
    found = {}
    for name, hint in hints.items():
        kinds = _kinds(hint)
        if kinds:
            found[name] = Argument(kinds, _named(hint), _dims(hint))
    return found


@reads_only
def check_arguments(name: str, function: Callable[..., Any], given: Mapping[str, Any]) -> None:
    """Refuse a call whose arguments are of the wrong kind.

    Args:
        name: what a message calls the kernel.

    Raises:
        KernelRefused: names the argument and what it got.
    """
    known = arguments_of(function)
    for argument, value in given.items():
        takes = known.get(argument)
        if takes is None:
            continue
        if not isinstance(value, takes.kinds):
            raise KernelRefused(
                f"{name}: {argument} must be {takes.called}; got a {type(value).__name__}"
                f" ({_SOURCE})"
            )
        if takes.dims and isinstance(value, torch.Tensor) and value.dim() not in takes.dims:
            wanted = " or ".join(map(str, takes.dims))
            raise KernelRefused(
                f"{name}: {argument} must have {wanted} dimensions; got {list(value.shape)}"
                f" ({_DOCUMENTED})"
            )


def _kinds(hint: Any) -> tuple[type, ...] | None:
    """Classes that an annotation takes; None where it says nothing that can be checked."""
    if typing.get_origin(hint) is Annotated:
        return _kinds(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        found = [_kinds(each) for each in typing.get_args(hint)]
        return None if None in found else tuple(kind for each in found if each for kind in each)
    origin = typing.get_origin(hint) or hint
    if inspect.isclass(origin) and issubclass(origin, Sequence) and origin is not str:
        return (list, tuple)
    try:
        kind = _KINDS.get(origin)
    except TypeError:  # no key
        return None
    if kind is None:
        return None
    return kind if isinstance(kind, tuple) else (kind,)


def _dims(hint: Any) -> tuple[int, ...]:
    """How many dimensions an annotation demands of a tensor; () if it says nothing."""
    if typing.get_origin(hint) is Annotated:
        return next((each.numbers for each in hint.__metadata__ if isinstance(each, _Dims)), ())
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return next((dims for dims in map(_dims, typing.get_args(hint)) if dims), ())
    return ()


def _named(hint: Any) -> str:
    if typing.get_origin(hint) is Annotated:
        return _named(typing.get_args(hint)[0])
    if typing.get_origin(hint) in (typing.Union, types.UnionType):
        return " | ".join(map(_named, typing.get_args(hint)))
    if hint is type(None):
        return "None"
    return str(getattr(hint, "__name__", hint)).replace("torch.", "")
