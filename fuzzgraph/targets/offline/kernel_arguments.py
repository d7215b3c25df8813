"""Holds calls of kernel models to the kinds of argument that the kernels take.

A binding of a real kernel refuses a dtype where a number belongs. Without this, the model would
stumble over it later, and that would count as a failure of ours.
"""

from __future__ import annotations

import functools
import inspect
import types
import typing
from collections.abc import Callable, Sequence
from numbers import Real
from typing import Any

import torch

from fuzzgraph.errors import KernelRefused
from fuzzgraph.relays import relay
from fuzzgraph.targets.offline.stub import Stub

__all__ = ["strict"]

_MODELS = "fuzzgraph.kernel_models"
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


def strict(model: Any) -> Any:
    """A model, or a package of models, whose calls raise `KernelRefused` for a wrong kind.

    Args:
        model: a function, a class whose public methods are called, or a `Stub` of these. Whatever
            is no kernel model stays as it is.
    """
    if isinstance(model, Stub):
        return Stub(**{name: strict(each) for name, each in vars(model).items()})
    if not getattr(model, "__module__", "").startswith(_MODELS):
        return model
    if inspect.isclass(model):
        return _strict_class(model)
    return _checked(model, model.__name__) if inspect.isfunction(model) else model


_STRICT: dict[type, type] = {}


def _strict_class(model: type) -> type:
    """One class for each model, however many backends are opened."""
    if model in _STRICT:
        return _STRICT[model]
    methods = {
        name: _checked(method, f"{model.__name__}.{name}")
        for name, method in inspect.getmembers(model, inspect.isfunction)
        if not name.startswith("_") or name == "__init__"
    }
    _STRICT[model] = type(model.__name__, (model,), {**methods, "__module__": model.__module__})
    return _STRICT[model]


def _checked(function: Callable[..., Any], name: str) -> Callable[..., Any]:
    signature = inspect.signature(function)
    hints = typing.get_type_hints(function)
    kinds = {each: kind for each, hint in hints.items() if (kind := _kinds(hint)) is not None}

    @functools.wraps(function)
    @relay
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise KernelRefused(f"{name}: {error} ({_SOURCE})") from error
        for argument, value in given.items():
            if argument in kinds and not isinstance(value, kinds[argument]):
                raise KernelRefused(
                    f"{name}: {argument} must be {_named(hints[argument])}; got {_shown(value)}"
                    f" ({_SOURCE})"
                )
        return function(*args, **kwargs)

    return checked


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


def _shown(value: Any) -> str:
    return f"a {type(value).__name__}"
