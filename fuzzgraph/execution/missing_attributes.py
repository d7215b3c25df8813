"""Attributes that objects of a class lack which a target derives from the engine's: whose fault?"""

from __future__ import annotations

import dis
from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FunctionType


def engine_leaves_unset(kind: type, name: str, is_engines: Callable[[str], bool]) -> bool:
    """Whether the engine's own methods set an attribute, and a derived class has kept all of them.

    Where the engine then reads what is not there, an object of the engine's own class lacks it too.

    Args:
        kind: the derived class.
        is_engines: whether a module is the engine's.
    """
    setters = [
        (each, method)
        for each in kind.__mro__
        if is_engines(each.__module__)
        for method, function in _functions(each)
        if _sets(function.__code__, name)
    ]
    return bool(setters) and all(_reached(kind, each, method) for each, method in setters)


def _functions(kind: type) -> Iterator[tuple[str, FunctionType]]:
    for name, value in vars(kind).items():
        function = getattr(value, "fget", value)
        if isinstance(function, FunctionType):
            yield name, function


def _sets(code: CodeType, name: str) -> bool:
    """Whether a function, or one within it, writes to an attribute of that name."""
    within: Iterable[CodeType] = (each for each in code.co_consts if isinstance(each, CodeType))
    return any(
        step.opname == "STORE_ATTR" and step.argval == name for step in dis.get_instructions(code)
    ) or any(_sets(each, name) for each in within)


def _reached(kind: type, owner: type, method: str) -> bool:
    """Whether a call of the method comes to its owner: what lies before it goes on to `super`."""
    before = kind.__mro__[: kind.__mro__.index(owner)]
    overriding = (dict(_functions(each)).get(method) for each in before if method in vars(each))
    return all(each is not None and "super" in each.__code__.co_names for each in overriding)
