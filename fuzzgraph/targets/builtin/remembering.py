"""Methods that are asked once for each argument."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from functools import lru_cache
from typing import Any, TypeVar, cast
from weakref import WeakMethod

__all__ = ["remembered"]

Argument = TypeVar("Argument", bound=Hashable)
Result = TypeVar("Result")


def remembered(method: Callable[[Argument], Result]) -> Callable[[Argument], Result]:
    """A bound method with its results kept, which does not keep its object.

    An object that holds a cache of its own bound method is a circle: a closed session would stay
    until the garbage collector comes.
    """
    weak: WeakMethod[Any] = WeakMethod(method)

    def ask(argument: Argument) -> Result:
        bound = weak()
        assert bound is not None, "the cache belongs to the object that asks"
        return cast(Result, bound(argument))

    return cast("Callable[[Argument], Result]", lru_cache(maxsize=None)(ask))
