"""Holds calls of kernel models to the kinds of argument that the kernels take.

A binding of a real kernel refuses a dtype where a number belongs. Without this, the model would
stumble over it later, and that would count as a failure of ours.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from fuzzgraph.errors import KernelRefused
from fuzzgraph.kernel_models.arguments import check_arguments
from fuzzgraph.relays import relay
from fuzzgraph.targets.offline.stub import Stub

__all__ = ["strict"]

_MODELS = "fuzzgraph.kernel_models"


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

    @functools.wraps(function)
    @relay
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = signature.bind(*args, **kwargs).arguments
        except TypeError as error:
            raise KernelRefused(f"{name}: {error} (signature of the kernel's binding)") from error
        check_arguments(name, function, given)
        return function(*args, **kwargs)

    return checked
