"""The methods by which an object of the engine is called: which ones, and names of arguments."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator
from typing import Any

from fuzzgraph.relays import relay
from fuzzgraph.targets.offline.binding import Binding, binding_of

__all__ = ["Arguments", "engine_class", "public_methods", "put_method"]

CALL = "__call__"


class Arguments:
    """Names the arguments of one method's calls.

    Args:
        backend: whose method it is; a stand-in's overriding method has the engine's names.
        method: as it is bound now.
    """

    def __init__(self, backend: Any, name: str, method: Callable[..., Any]) -> None:
        self._binding = _binding(_of_the_engine(backend, name) or method)

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """By name; by number where the method takes no such call, which it says itself."""
        if self._binding is None:
            return _numbered(args, kwargs)
        try:
            return self._binding.flat(args, kwargs)
        except TypeError:
            return _numbered(args, kwargs)


def engine_class(backend: Any) -> type:
    """Its class, or the one that a stand-in of ours derives from."""
    kinds = type(backend).__mro__
    return next((kind for kind in kinds if not kind.__module__.startswith("fuzzgraph.")), kinds[0])


def public_methods(backend: Any) -> Iterator[str]:
    """Those that have no underscore, and the call of the object itself."""
    kind = type(backend)
    for name in dir(kind):
        # Properties are not called; a static method or one of the class is not this backend's.
        public = name == CALL or not name.startswith("_")
        if public and inspect.isfunction(inspect.getattr_static(kind, name)):
            yield name


def put_method(backend: Any, name: str, function: Callable[..., Any]) -> None:
    """Have this object answer a method with a function, and no other of its class."""
    if name != CALL:
        setattr(backend, name, function)
        return
    kind = type(backend)  # Python looks the call of an object up in its class alone

    @relay
    def call(_: Any, *args: Any, **kwargs: Any) -> Any:
        return function(*args, **kwargs)

    backend.__class__ = type(kind.__name__, (kind,), {CALL: call, "__module__": __name__})


def _of_the_engine(backend: Any, name: str) -> Callable[..., Any] | None:
    """The engine's own method, which names the arguments of a stand-in that overrides it."""
    owner = next(
        (
            kind
            for kind in type(backend).__mro__
            if name in vars(kind) and not kind.__module__.startswith("fuzzgraph.")
        ),
        None,
    )
    method = None if owner is None else vars(owner)[name]
    return method.__get__(backend) if inspect.isfunction(method) else None


def _binding(method: Callable[..., Any]) -> Binding | None:
    try:
        return binding_of(method)
    except (TypeError, ValueError):
        return None


def _numbered(args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    return {**{f"[{at}]": value for at, value in enumerate(args)}, **kwargs}
