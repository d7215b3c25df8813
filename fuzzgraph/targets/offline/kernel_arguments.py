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
from fuzzgraph.targets.offline.binding import Binding, binding_of
from fuzzgraph.targets.offline.stub import Stub

__all__ = ["checks_kinds", "put_model", "strict"]

_MODELS = "fuzzgraph.kernel_models"
_REAL = "_stands_in_for"


def put_model(module: Any, name: str, model: Any) -> None:
    """Put a model, or another stand-in, in the place of a function in a module of the engine.

    Calls that the function itself would not take are refused: the engine's own wrapper says by its
    signature what it takes in this release, whatever the model goes without.
    """
    found = getattr(module, name, None)
    real = getattr(found, _REAL, found)
    stood_in = strict(model)
    wrapper = inspect.unwrap(real) if callable(real) else None
    if inspect.isfunction(wrapper) and inspect.isfunction(model):
        stood_in = _bound(stood_in, binding_of(wrapper), name)
        setattr(stood_in, _REAL, real)
    setattr(module, name, stood_in)


def _bound(function: Callable[..., Any], binding: Binding, name: str) -> Any:
    @functools.wraps(function)
    @relay
    def bound(*args: Any, **kwargs: Any) -> Any:
        try:
            binding.named(args, kwargs)
        except TypeError as error:
            raise KernelRefused(f"{name}: {error} (signature of the engine's own)") from error
        return function(*args, **kwargs)

    return bound


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


def checks_kinds(model: Any, name: str) -> Any:
    """A model behind a binding that has counted its arguments: wrong kinds raise `KernelRefused`.

    Args:
        model: a function of the kernel models, or a partial of one; whatever else stays as it is.
        name: what a message calls it.
    """
    if isinstance(model, functools.partial):
        return functools.partial(checks_kinds(model.func, name), *model.args, **model.keywords)
    if not inspect.isfunction(model) or not model.__module__.startswith(_MODELS):
        return model
    binding = binding_of(model)

    @functools.wraps(model)
    @relay
    def checked(*args: Any, **kwargs: Any) -> Any:
        check_arguments(name, model, binding.named(args, kwargs))
        return model(*args, **kwargs)

    return checked


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
    binding = binding_of(function)

    @functools.wraps(function)
    @relay
    def checked(*args: Any, **kwargs: Any) -> Any:
        try:
            given = binding.named(args, kwargs)
        except TypeError as error:
            raise KernelRefused(f"{name}: {error} (signature of the kernel's binding)") from error
        check_arguments(name, function, given)
        return function(*args, **kwargs)

    return checked
