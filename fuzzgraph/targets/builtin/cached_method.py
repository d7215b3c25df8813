"""Methods that are asked once for the same arguments."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, ParamSpec, TypeVar, cast
from weakref import WeakMethod

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


def cached_method(method: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """A bound method of hashable arguments with its results kept, which does not keep its object.

    An object that holds a cache of its own bound method is a circle: a closed session would stay
    until the garbage collector comes.
    """
    weak: WeakMethod[Any] = WeakMethod(method)

    def ask(*arguments: Arguments.args, **named: Arguments.kwargs) -> Result:
        bound = weak()
        assert bound is not None, "the cache belongs to the object that asks"
        return cast(Result, bound(*arguments, **named))

    return cast("Callable[Arguments, Result]", lru_cache(maxsize=None)(ask))
