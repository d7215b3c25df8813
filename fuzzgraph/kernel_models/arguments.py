"""What kinds of argument a function takes, by its annotations, as the binding of a kernel would."""

from __future__ import annotations

import inspect
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from numbers import Real
from typing import Any

import torch

from fuzzgraph.errors import KernelRefused

__all__ = ["Argument", "arguments_of", "check_arguments"]

_SOURCE = "signature of the kernel's binding"
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


@cache
def arguments_of(function: Callable[..., Any]) -> Mapping[str, Argument]:
    """Those arguments of a function whose annotations say something that can be checked."""
    hints = typing.get_type_hints(function)
    found = {name: (_kinds(hint), _named(hint)) for name, hint in hints.items()}
    return {name: Argument(kinds, called) for name, (kinds, called) in found.items() if kinds}


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
        if takes is not None and not isinstance(value, takes.kinds):
            raise KernelRefused(
                f"{name}: {argument} must be {takes.called}; got a {type(value).__name__}"
                f" ({_SOURCE})"
            )


def _kinds(hint: Any) -> tuple[type, ...] | None:
    """Classes that an annotation takes; None where it says nothing that can be checked."""
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


def _named(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint)).replace("torch.", "")
