"""Binds the arguments of a call to names, as `inspect.Signature.bind` and twenty times as fast."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

__all__ = ["Binding", "binding_of"]


class Binding:
    """The signature of one function, for all of its calls."""

    def __init__(self, signature: inspect.Signature) -> None:
        self._signature = signature
        parameters = signature.parameters.values()
        by_name = [each for each in parameters if each.kind is not each.VAR_KEYWORD]
        self._names = tuple(each.name for each in by_name)
        self._known = frozenset(self._names)
        self._needed = frozenset(each.name for each in by_name if each.default is each.empty)
        self._rest = next((each.name for each in parameters if each.kind is each.VAR_KEYWORD), "")
        self._star = next(
            (each.name for each in parameters if each.kind is each.VAR_POSITIONAL), ""
        )
        self._by_place = tuple(
            each.name for each in by_name if each.kind is each.POSITIONAL_OR_KEYWORD
        )
        # What can be given by place alone is left to `bind`.
        plain = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        self._is_plain = all(each.kind in plain for each in by_name)

    def named(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """Name -> argument as it was given, in the order of the parameters.

        Raises:
            TypeError: the function takes no such call.
        """
        if self._is_plain and len(args) <= len(self._by_place):
            given = dict(zip(self._by_place, args, strict=False))
            if kwargs.keys().isdisjoint(given):
                given |= kwargs
                others = given.keys() - self._known
                if given.keys() >= self._needed and (self._rest or not others):
                    found = {name: given[name] for name in self._names if name in given}
                    if others:
                        found[self._rest] = {
                            name: kwargs[name] for name in kwargs if name in others
                        }
                    return found
        return dict(self._signature.bind(*args, **kwargs).arguments)

    def flat(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
        """The same, with what is taken by `*rest` as `rest[0]` on, and by `**more` by its names.

        Raises:
            TypeError: the function takes no such call.
        """
        found = self.named(args, kwargs)
        if self._star in found:
            rest = found.pop(self._star)
            found |= {f"{self._star}[{at}]": value for at, value in enumerate(rest)}
        if self._rest in found:
            found |= found.pop(self._rest)
        return found


# Each session that opens asks again, and of a method by another object.
_OF_FUNCTIONS: WeakKeyDictionary[Any, Binding] = WeakKeyDictionary()
_OF_METHODS: WeakKeyDictionary[Any, Binding] = WeakKeyDictionary()


def binding_of(function: Callable[..., Any]) -> Binding:
    """The binding of a function, or of a method without its first parameter.

    Raises:
        TypeError, ValueError: it has no signature.
    """
    plain = getattr(function, "__func__", None)
    known, key = (_OF_FUNCTIONS, function) if plain is None else (_OF_METHODS, plain)
    found = known.get(key)
    if found is None:
        found = known[key] = Binding(inspect.signature(function))
    return found
